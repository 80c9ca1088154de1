"""Every run that a user may ask for: those of a queue, and those without one that this user has started.

A run is named by its name, or by its folder or URL. One that both know is one run.
"""

import base64
import binascii
import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jobs.clusters.timeouts import CallTimeoutError, call_with_timeout
from jobs.errors import ConflictError, NotFoundError, suggest_names
from jobs.model import ALL_RUNS, LATEST_S, Attempt, Event, LogPage, Page, Run, RunFilter, Usage, UsageBy
from jobs.paths import current_user
from jobs.service.direct.direct_runs import DirectRuns, tags_of
from jobs.service.direct.run_events import events_of
from jobs.service.operations import Operations
from jobs.service.run_folders import MAX_JOURNAL_BYTES, UNREADABLE, RunFolders
from trainers.config.storage_location import in_home, is_url
from trainers.errors import ConfigError, StorageError
from trainers.run_folder.journal import Journal, State
from trainers.run_folder.layout import ATTEMPT, ATTEMPTS, CONFIG, RunFolder, seconds_of
from trainers.run_folder.run_register import Registered, all_registered, find_registered, forget
from trainers.storage import open_storage

# A storage that does not respond within this is said to be not reachable. Seconds.
TIMEOUT_S = 5.0
# The same of one that is named by its folder, and of which nothing is known: what may pass is tried for 20 s there.
NAMED_TIMEOUT_S = 60.0
READ_AT_ONCE = 16
# Among so many of the newest runs of a queue a name is looked for that is near to one that is not there.
NAMES = 500


class AllRuns:
    """Finds runs by what a user calls them, and does what can be done with them wherever they are known."""

    def __init__(self, queued: Operations, *, timeout_s: float = TIMEOUT_S):
        """Reads nothing yet; `queued` has the runs of a queue."""
        self._queued, self._folders = queued, RunFolders(timeout_s=timeout_s)
        self._direct = DirectRuns(self._folders)
        self._found: dict[str, str | Registered] = {}

    def run(self, text: str) -> Run:
        """The run of a name, a folder or a URL.

        Raises:
            NotFoundError: there is none; the message has names that are near.
            ConflictError: there are several of that name.
        """
        found = self.find(text)
        return self._queued.run(found) if isinstance(found, str) else self._direct.run(found)

    def mean_queued(self, name: str) -> None:
        """From now on this name means the run of the queue, whatever else has it."""
        self._found[name] = name

    def attempts(self, text: str) -> list[Attempt]:
        found = self.find(text)
        return self._queued.attempts(found) if isinstance(found, str) else self._direct.attempts(found)

    def events(self, text: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """The events after one of a number; of a run without a queue, the entries of its journal."""
        found = self.find(text)
        if isinstance(found, str):
            return self._queued.events(found, after=after, limit=limit)
        run = self._direct.run(found)
        entries = self._folders.read(run, lambda folder: [*Journal(folder, most_bytes=MAX_JOURNAL_BYTES).entries()])
        return [*events_of(run, entries)][after : after + limit]

    def logs(
        self, text: str, *, attempt: int | None = None, source: str | None = None, cursor: str | None = None
    ) -> LogPage:
        found = self.find(text)
        if isinstance(found, str):
            return self._queued.logs(found, attempt=attempt, source=source, cursor=cursor)
        return self._direct.logs(found, attempt=attempt, source=source, cursor=cursor)

    def stop(self, text: str) -> Run:
        found = self.find(text)
        return self._queued.stop(found) if isinstance(found, str) else self._direct.stop(found)

    def resume(self, text: str) -> Run:
        """Queues a failed or stopped run of the queue again; ConflictError for one without a queue."""
        found = self.find(text)
        if isinstance(found, str):
            return self._queued.resume(found)
        raise ConflictError(
            f"{found.name} was started without a queue, and is continued where a command runs: rayscribe resume {text}"
        )

    def usage(self, by: UsageBy, *, since_s: float | None = None, run_id: str | None = None) -> list[Usage]:
        """What the runs of the queue have held; nobody accounts for those without one."""
        return self._queued.usage(by, since_s=since_s, run_id=run_id)

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
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            known = all_registered()
            are_gone = pool.map(self._direct.is_gone, known)
            gone = [run.url for run, is_gone in zip(known, are_gone, strict=True) if is_gone]
        for url in gone:
            forget(url)
        return gone

    def runs(self, wanted: RunFilter = ALL_RUNS, *, limit: int = 50, cursor: str | None = None) -> Page:
        """A part of the list of all runs, newest first."""
        before, at = _read_cursor(cursor)
        by_url = {known.url: known for known in all_registered()}
        direct = [known for known in by_url.values() if _is_wanted(known, wanted) and _place(known) < before]
        runs: list[Run] = []
        while True:
            queued = self._queued.runs(wanted, limit=limit, cursor=at)
            more = queued.next_cursor is not None and queued.runs
            oldest_s = queued.runs[-1].submitted_s if more else -math.inf
            here = [known for known in direct if known.created_s >= oldest_s]
            shown = self._shown(here, wanted, most=limit + 1)
            for run in queued.runs:
                later = wanted.queue is None and run.run_folder in by_url and _is_later(by_url[run.run_folder], run)
                if _position(run) < before and not later:
                    shown.append(run)
            runs += sorted(shown, key=_position, reverse=True)
            if len(runs) > limit:
                return Page(runs=runs[:limit], next_cursor=_cursor(runs[limit - 1], at))
            if not more:
                return Page(runs=runs, next_cursor=None)
            direct, at = direct[len(here) :], queued.next_cursor

    def find(self, text: str) -> str | Registered:
        """The name in the queue, or what is registered of a run without one; see `run`."""
        known = self._found.get(text)
        if known is None:
            known = self._found[text] = self._find(text)
        # What it was started as may have changed since.
        return known if isinstance(known, str) else find_registered(known.url) or known

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
            if queued is not None and queued.run_folder == named and not (direct and _is_later(direct, queued)):
                return queued.id
            if direct is not None:
                return direct
        return _unregistered(url)

    def _queued_run(self, name: str) -> Run | None:
        try:
            return self._queued.run(name)
        except (NotFoundError, ConfigError):
            return None

    def _shown(self, direct: Sequence[Registered], wanted: RunFilter, *, most: int) -> list[Run]:
        """The first runs in the wanted states, without those that the queue has."""
        runs: list[Run] = []
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            for start in range(0, len(direct), READ_AT_ONCE):
                found = pool.map(self._unless_queued, direct[start : start + READ_AT_ONCE])
                runs += [run for run in found if run is not None and (not wanted.states or run.state in wanted.states)]
                if len(runs) >= most:
                    break
        return runs

    def _unless_queued(self, known: Registered) -> Run | None:
        queued = self._queued_run(known.name)
        if queued is not None and queued.run_folder == known.url and not _is_later(known, queued):
            return None
        return self._direct.run(known)


def _is_later(direct: Registered, queued: Run) -> bool:
    """Whether a run of a queue has ended, and was started again without it."""
    return queued.ended_s is not None and (bool(direct.is_running) or direct.started_s > queued.ended_s)


def _is_wanted(known: Registered, wanted: RunFilter) -> bool:
    """Whether it is listed, whatever its state."""
    of_user = wanted.user in (None, current_user())
    return of_user and wanted.queue is None and (wanted.tag is None or wanted.tag in tags_of(known))


def _unregistered(url: str) -> Registered:
    """A run that somebody else has started, or elsewhere, by its folder.

    Raises:
        NotFoundError: there is none in the folder.
    """

    def read() -> tuple[Any, State, float]:
        folder = RunFolder(open_storage(url, confined=True))
        config = folder.read_yaml(CONFIG)
        state = Journal(folder, most_bytes=MAX_JOURNAL_BYTES).read()
        first = folder.read_json(f"{ATTEMPTS}/1/{ATTEMPT}") or {}
        return config, state, seconds_of(first["started"]) if first else 0.0

    try:
        config, state, began_s = call_with_timeout(read, NAMED_TIMEOUT_S)
    except CallTimeoutError:
        raise StorageError(
            f"no run can be read in {url}: its storage has not responded in {NAMED_TIMEOUT_S:g} s; check the network "
            "and the service"
        ) from None
    except UNREADABLE as error:
        raise NotFoundError(f"no run can be read in {url}: {error}") from None
    if not isinstance(config, dict) or state.number == 0:
        raise NotFoundError(f"no run is in {url}: give its folder, or a name that `rayscribe list` shows")
    return Registered(url, config, "", began_s, began_s, "", attempt=state.attempt)


def _position(run: Run) -> tuple[float, str]:
    return run.submitted_s, run.id


def _place(known: Registered) -> tuple[float, str]:
    return known.created_s, known.name


def _cursor(last: Run, queued: str | None) -> str:
    """After which run the next part begins, and the page of the queue's list in which it does."""
    return base64.urlsafe_b64encode(json.dumps([*_position(last), queued]).encode()).decode().rstrip("=")


def _read_cursor(text: str | None) -> tuple[tuple[float, str], str | None]:
    if text is None:
        return (math.inf, ""), None
    try:
        found: Any = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        found = None
    match found:
        case [int() | float() as submitted_s, str() as run_id, (str() | None) as queued] if abs(submitted_s) < LATEST_S:
            return (float(submitted_s), run_id), queued
    raise ConfigError(f"--cursor {text}: it is not one that a list has ended with: copy it, or leave it out")
