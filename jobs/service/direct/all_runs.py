"""Every run that a user may ask for: those of a queue, and those without one that this user has started.

A run is named by its name, or by its folder or URL. One that both know is one run.
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

# A storage that does not respond within this is said to be not reachable. Seconds.
TIMEOUT_S = 5.0
# Among so many of the newest runs of a queue a name is looked for that is near to one that is not there.
NAMES = 500


class AllRuns:
    """Finds runs by what a user calls them, and does what can be done with them wherever they are known."""

    def __init__(self, queued: Operations, *, timeout_s: float = TIMEOUT_S):
        """Reads nothing yet; `queued` has the runs of a queue."""
        self._queued, self._direct = queued, DirectRuns(timeout_s=timeout_s)
        self._found: dict[str, str | Registered] = {}

    def _of(self, text: str) -> tuple[KnownRuns, str]:
        """Who knows a run, and by which key."""
        found = self._known(text)
        return (self._queued, found) if isinstance(found, str) else (self._direct, found.url)

    def run(self, text: str) -> Run:
        """The run of a name, a folder or a URL.

        Raises:
            NotFoundError: there is none; the message has names that are near.
            ConflictError: there are several of that name.
        """
        operations, key = self._of(text)
        return operations.run(key)

    def attempts(self, text: str) -> list[Attempt]:
        operations, key = self._of(text)
        return operations.attempts(key)

    def events(self, text: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """The events after one of a number; of a run without a queue, the entries of its journal."""
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
        """Queues a failed or stopped run of the queue again; ConflictError for one without a queue."""
        operations, key = self._of(text)
        return operations.resume(key)

    def usage(self, by: UsageBy, *, since_s: float | None = None, run_id: str | None = None) -> list[Usage]:
        """What the runs of the queue have held; nobody accounts for those without one."""
        return self._queued.usage(by, since_s=since_s, run_id=run_id)

    def mean_queued(self, name: str) -> None:
        """From now on this name means the run of the queue, whatever else has it."""
        self._found[name] = name

    def forget(self, text: str) -> str:
        """Removes a run without a queue from this user's list, and gives its folder, which stays.

        Raises:
            ConflictError: it runs, or it is one of a queue.
        """
        found = self.find(text)
        if isinstance(found, str):
            raise ConflictError(f"{found} is a run of a queue, whose ledger keeps what happened: it stays in the list")
        if found.is_running:
            raise ConflictError(f"{found.name} is running: stop it first (rayscribe stop {found.name})")
        forget(found.url)
        return found.url

    def forget_gone(self) -> list[str]:
        """Removes the runs whose folders are gone, or were never made; gives their folders."""
        gone = self._direct.gone()
        for url in gone:
            forget(url)
        return gone

    def runs(self, wanted: RunFilter = ALL_RUNS, *, limit: int = 50, cursor: str | None = None) -> Page:
        """A page of all runs, newest first."""
        direct = self._direct.newest_first(wanted, read_cursor(cursor), self._is_direct)
        both = merge(self._queued_runs(wanted, limit, cursor), direct, key=position_of, reverse=True)
        runs = [*islice(both, limit + 1)]
        more = len(runs) > limit
        return Page(runs=runs[:limit], next_cursor=cursor_after(position_of(runs[limit - 1])) if more else None)

    def _queued_runs(self, wanted: RunFilter, limit: int, cursor: str | None) -> Iterator[Run]:
        """Those of the queue, newest first, without those that were started again without it; read page by page."""
        by_url = {known.url: known for known in all_registered()} if wanted.queue is None else {}
        while True:
            page = self._queued.runs(wanted, limit=limit, cursor=cursor)
            yield from (run for run in page.runs if not _is_later(by_url.get(run.run_folder), run))
            if page.next_cursor is None:
                return
            cursor = page.next_cursor

    def find(self, text: str) -> str | Registered:
        """The name in the queue, or what is registered of a run without one; see `run`."""
        known = self._known(text)
        # What it was started as may have changed since.
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
        """Whether the list has a run as one without a queue."""
        queued = self._queued_run(known.name)
        return queued is None or queued.run_folder != known.url or _is_later(known, queued)


def _is_later(direct: Registered | None, queued: Run) -> bool:
    """Whether a run of a queue has ended, and was started again without it."""
    if direct is None or queued.ended_s is None:
        return False
    return bool(direct.is_running) or direct.started_s > queued.ended_s
