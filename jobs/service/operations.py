"""Interfaces of a service's operations: `service.Service` in this process, or `api.client.Client` over HTTP."""

from pathlib import Path
from typing import Protocol

from jobs.model import ALL_RUNS, Attempt, Event, LogPage, Page, Run, RunFilter, Usage, UsageBy
from jobs.submission.run_request import RunRequest


class KnownRuns(Protocol):
    """Operations on a run by its key: its name, or in `direct.direct_runs` its folder."""

    def run(self, run_id: str) -> Run: ...

    def attempts(self, run_id: str) -> list[Attempt]: ...

    def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]: ...

    def stop(self, run_id: str) -> Run: ...

    def resume(self, run_id: str) -> Run: ...

    def logs(
        self, run_id: str, *, attempt: int | None = None, source: str | None = None, cursor: str | None = None
    ) -> LogPage: ...


class RunOperations(KnownRuns, Protocol):
    """Operations on runs that can be listed and accounted: a queue's runs, or in `direct.all_runs` all."""

    def runs(self, wanted: RunFilter = ALL_RUNS, *, limit: int = 50, cursor: str | None = None) -> Page: ...

    def usage(self, by: UsageBy, *, since_s: float | None = None, run_id: str | None = None) -> list[Usage]: ...


class Operations(RunOperations, Protocol):
    """All operations of a service that the command line needs."""

    def clusters(self) -> list[str]: ...

    def has_package(self, sha256: str) -> bool: ...

    def put_package(self, sha256: str, path: Path) -> None: ...

    def submit(self, run_request: RunRequest, *, idempotency_key: str | None = None) -> Run: ...
