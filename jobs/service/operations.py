"""The operations of a service: `service.Service` in this process, or `api.client.Client` over HTTP."""

from pathlib import Path
from typing import Protocol

from jobs.model import ALL_RUNS, Attempt, Event, LogPage, Page, Run, RunFilter, Usage, UsageBy
from jobs.submission.run_request import RunRequest


class Operations(Protocol):
    """What the command line needs of a service."""

    def clusters(self) -> list[str]: ...  # noqa: D102

    def has_package(self, sha256: str) -> bool: ...  # noqa: D102

    def put_package(self, sha256: str, path: Path) -> None: ...  # noqa: D102

    def submit(self, run_request: RunRequest, *, idempotency_key: str | None = None) -> Run: ...  # noqa: D102

    def runs(self, wanted: RunFilter = ALL_RUNS, *, limit: int = 50, cursor: str | None = None) -> Page: ...  # noqa: D102

    def run(self, run_id: str) -> Run: ...  # noqa: D102

    def attempts(self, run_id: str) -> list[Attempt]: ...  # noqa: D102

    def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]: ...  # noqa: D102

    def stop(self, run_id: str) -> Run: ...  # noqa: D102

    def resume(self, run_id: str) -> Run: ...  # noqa: D102

    def logs(  # noqa: D102
        self, run_id: str, *, attempt: int | None = None, source: str | None = None, cursor: str | None = None
    ) -> LogPage: ...

    def usage(self, by: UsageBy, *, since_s: float | None = None, run_id: str | None = None) -> list[Usage]: ...  # noqa: D102
