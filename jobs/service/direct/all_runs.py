"""All runs: those of a queue, and those that this user has started without a queue.

A run is found by its name, its folder or its URL. A run that is in both lists counts once.
"""

import os
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from pathlib import Path

from jobs.errors import ConflictError, NotFoundError, suggest_names
from jobs.model import (
    ALL_RUNS,
    Attempt,
    Event,
    LogPage,
    Page,
    Run,
    RunFilter,
    Usage,
    UsageBy,
    cursor_after,
    position_of,
    read_cursor,
)
from jobs.service.direct.direct_runs import DirectRuns
from jobs.service.operations import KnownRuns, Operations
from trainers.config.storage_location import in_home, is_url
from trainers.errors import ConfigError
from trainers.run_folder.layout import CONFIG
from trainers.run_folder.run_register import Registered, all_registered, find_registered, forget

# A storage that does not respond within this time is reported. Seconds.
TIMEOUT_S = 5.0
# Similar names are searched among this number of newest runs of a queue.
NAMES = 500


class AllRuns:
    """Finds runs by name, folder or URL, and forwards operations to the queue or to `DirectRuns`."""

    def __init__(self, queued: Operations, *, timeout_s: float = TIMEOUT_S):
        self._queued, self._direct = queued, DirectRuns(timeout_s=timeout_s)
        self._found: dict[str, str | Registered] = {}

    def _of(self, text: str) -> tuple[KnownRuns, str]:
        found = self._known(text)
        return (self._queued, found) if isinstance(found, str) else (self._direct, found.url)

    def run(self, text: str) -> Run:
        """Returns the run of a name, a folder or a URL.

        Raises:
            NotFoundError: no such run exists; the message has similar names.
            ConflictError: several runs have that name.
        """
        operations, key = self._of(text)
        return operations.run(key)

    def attempts(self, text: str) -> list[Attempt]:
        operations, key = self._of(text)
        return operations.attempts(key)

    def events(self, text: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Returns the events after a number; for a run without a queue, the entries of its journal."""
        operations, key = self._of(text)
        return operations.events(key, after=after, limit=limit)

    def logs(
        self, text: str, *, attempt: int | None = None, source: str | None = None, cursor: str | None = None
    ) -> LogPage:
        operations, key = self._of(text)
        return operations.logs(key, attempt=attempt, source=source, cursor=cursor)

    def stop(self, text: str) -> Run:
        operations, key = self._of(text)
        return operations.stop(key)

    def resume(self, text: str) -> Run:
        """Queues a failed or stopped run of the queue again; raises ConflictError for a run without a queue."""
        operations, key = self._of(text)
        return operations.resume(key)

    def usage(self, by: UsageBy, *, since_s: float | None = None, run_id: str | None = None) -> list[Usage]:
        """Returns the resources that runs of the queue have held; runs without a queue are not accounted."""
        return self._queued.usage(by, since_s=since_s, run_id=run_id)

    def mean_queued(self, name: str) -> None:
        """Makes this name refer to the run of the queue from now on, even if another run has the same name."""
        self._found[name] = name

    def forget(self, text: str) -> str:
        """Removes a run without a queue from this user's list; returns its folder, which is kept.

        Raises:
            ConflictError: the run is active, or belongs to a queue.
        """
        found = self.find(text)
        if isinstance(found, str):
            raise ConflictError(f"{found} is a run of a queue, whose ledger keeps its history: it stays in the list")
        if found.is_running:
            raise ConflictError(f"{found.name} is running: stop it first (rayscribe stop {found.name})")
        forget(found.url)
        return found.url

    def forget_gone(self) -> list[str]:
        """Removes runs whose folders do not exist from this user's list; returns these folders."""
        gone = self._direct.gone()
        for url in gone:
            forget(url)
        return gone

    def runs(self, wanted: RunFilter = ALL_RUNS, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Returns a page of all runs, newest first."""
        direct = self._direct.newest_first(wanted, read_cursor(cursor), self._is_direct)
        both = merge(self._queued_runs(wanted, limit, cursor), direct, key=position_of, reverse=True)
        runs = [*islice(both, limit + 1)]
        more = len(runs) > limit
        return Page(runs=runs[:limit], next_cursor=cursor_after(position_of(runs[limit - 1])) if more else None)

    def _queued_runs(self, wanted: RunFilter, limit: int, cursor: str | None) -> Iterator[Run]:
        """Yields runs of the queue, newest first, except runs that were restarted without it; reads page by page."""
        by_url = {known.url: known for known in all_registered()} if wanted.queue is None else {}
        while True:
            page = self._queued.runs(wanted, limit=limit, cursor=cursor)
            yield from (run for run in page.runs if not _is_later(by_url.get(run.run_folder), run))
            if page.next_cursor is None:
                return
            cursor = page.next_cursor

    def find(self, text: str) -> str | Registered:
        """Returns the name of a run of the queue, or the register's entry of another run; raises like `run`."""
        known = self._known(text)
        # The run may have been started again since.
        return known if isinstance(known, str) else self._direct.known(known.url)

    def _known(self, text: str) -> str | Registered:
        if text not in self._found:
            self._found[text] = self._find(text)
        return self._found[text]

    def _find(self, text: str) -> str | Registered:
        if is_url(text) or "/" in text or text.startswith("~"):
            return self._in_folder(text)
        queued = self._queued_run(text)
        direct = [run for run in all_registered() if run.name == text]
        if queued is not None:
            direct = [run for run in direct if run.url != queued.run_folder or _is_later(run, queued)]
            if not any(run.url != queued.run_folder for run in direct):
                return direct[0] if direct else queued.id
        if len(direct) + (queued is not None) > 1:
            folders = [*([f"{queued.run_folder} (queued)"] if queued is not None else []), *(run.url for run in direct)]
            raise ConflictError(f"{text} names {len(folders)} runs; give the folder: {', '.join(folders)}")
        if direct:
            return direct[0]
        if (Path(text) / CONFIG).is_file():
            return self._in_folder(text)
        names = [run.id for run in self._queued.runs(limit=NAMES).runs] + [run.name for run in all_registered()]
        near = suggest_names(text, [*dict.fromkeys(names)], or_else="`rayscribe list` shows all")
        raise NotFoundError(f"no run is named {text}: {near}")

    def _in_folder(self, text: str) -> str | Registered:
        url = text.rstrip("/") if is_url(text) else os.path.normpath(in_home(text).absolute())
        for named in dict.fromkeys((url, url if is_url(url) else str(Path(url).resolve()))):
            queued, direct = self._queued_run(named.rpartition("/")[2]), find_registered(named)
            if queued is not None and queued.run_folder == named and not _is_later(direct, queued):
                return queued.id
            if direct is not None:
                return direct
        return self._direct.known(url)

    def _queued_run(self, name: str) -> Run | None:
        try:
            return self._queued.run(name)
        except (NotFoundError, ConfigError):
            return None

    def _is_direct(self, known: Registered) -> bool:
        queued = self._queued_run(known.name)
        return queued is None or queued.run_folder != known.url or _is_later(known, queued)


def _is_later(direct: Registered | None, queued: Run) -> bool:
    """Returns True if a run of a queue has ended, and was then started again without the queue."""
    if direct is None or queued.ended_s is None:
        return False
    return bool(direct.is_running) or direct.started_s > queued.ended_s
