"""State of runs that were started without a queue, read from their folders and drivers."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from jobs.clusters.timeouts import CallTimeoutError, call_with_timeout
from jobs.errors import ConflictError, NotFoundError
from jobs.model import Attempt, AttemptState, Cause, Event, Gang, LogPage, Position, Progress, Run, RunFilter, RunState
from jobs.paths import current_user
from jobs.service.logs import read_logs
from jobs.service.run_folders import MAX_JOURNAL_BYTES, UNREADABLE, RunFolders, progress_of
from jobs.service.run_status import ENDED, PHASES, STALE_S, describe
from jobs.submission.job_spec import gang_of
from trainers.config.parts.scaling_part import ScalingPart
from trainers.config.wording import both_contexts, counted, format_duration, headline_of
from trainers.distributed.machine import host_of
from trainers.errors import RayscribeError, RefusedError, StorageError
from trainers.run_folder.attempt_status import read_status, restarts_of, scores_of
from trainers.run_folder.journal import Journal, State, fold
from trainers.run_folder.layout import ATTEMPT, ATTEMPTS, CONFIG, RunFolder, seconds_of
from trainers.run_folder.run_register import Registered, all_registered, find_registered
from trainers.storage import open_storage

# Exit codes of a driver that was asked to stop: 128 + SIGHUP, 128 + SIGINT, 128 + SIGTERM.
STOPPED_CODES = (129, 130, 143)
# Only the newest attempts of a run are shown.
MAX_ATTEMPTS = 50
# For a folder that a user names; its storage may be new, and transient errors are retried for 20 s. Seconds.
NAMED_TIMEOUT_S = 60.0
READ_AT_ONCE = 16
# State of a run after each kind of journal entry that determines it.
STATES = {"opened": RunState.TRAINING, "prepared": RunState.PREPARING_DATA, "finished": RunState.SUCCEEDED}


@dataclass(frozen=True)
class _Found:
    """Content of a run folder: its journal's state, and the attempt to show with its status.

    `is_own` is True if the registered driver has begun that attempt.
    """

    state: State
    attempt: int
    progress: Progress | None
    is_own: bool


class DirectRuns:
    """The runs in this user's register; implements `KnownRuns` with the URLs of their folders as keys.

    A storage that does not respond in time is skipped for a while.
    """

    def __init__(self, *, timeout_s: float):
        self._folders = RunFolders(timeout_s=timeout_s)
        self._unregistered: dict[str, Registered] = {}

    def known(self, url: str) -> Registered:
        """Returns the register's entry of a run's last start, or one read from the folder of another user's run.

        Raises:
            NotFoundError: no run is in the folder.
            StorageError: the storage does not respond.
        """
        known = find_registered(url) or self._unregistered.get(url)
        if known is None:
            known = self._unregistered[url] = _unregistered(url)
        return known

    def newest_first(
        self, wanted: RunFilter, before: Position | None, is_listed: Callable[[Registered], bool]
    ) -> Iterator[Run]:
        """Yields the runs that are wanted and listed, after a position in all lists; reads READ_AT_ONCE at a time."""
        registered = sorted(all_registered(), key=_position_of, reverse=True)
        waiting = [
            known
            for known in registered
            if _is_wanted(known, wanted) and (before is None or _position_of(known) < before)
        ]

        def read(known: Registered) -> Run | None:
            run = self._run(known) if is_listed(known) else None
            return None if run is None or (wanted.states and run.state not in wanted.states) else run

        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            for start in range(0, len(waiting), READ_AT_ONCE):
                yield from filter(None, [*pool.map(read, waiting[start : start + READ_AT_ONCE])])

    def run(self, url: str) -> Run:
        """Returns the run as it is now. Its queue and its cluster are empty."""
        return self._run(self.known(url))

    def _run(self, known: Registered) -> Run:
        run = _described(known)
        try:
            found = self._folders.read(run, partial(_look, known))
        except RayscribeError as error:
            state = _state_by_code(known)
            return run.model_copy(update={"state": state, "reason": f"not readable: {error}"})
        state, reason = _state_of(known, found)
        progress = found.progress or Progress(phase="")
        best = progress.best_wer
        validated = [(best, progress.best_full_context_wer)] if best is not None else []
        scores = {**scores_of(found.state, validated), **restarts_of(found.state, found.attempt)}
        shown: dict[str, Any] = {
            "uid": str((found.state.experiment or {}).get("id", "")),
            "state": state,
            "reason": reason,
            "attempt": found.attempt,
            "progress": progress.model_copy(update=scores),
            "ended_s": (known.ended_s or progress.at_s or known.started_s) if state.ended else None,
        }
        return run.model_copy(update=shown)

    def gone(self) -> list[str]:
        """Returns the folders of registered runs without a journal, unless their driver is running."""

        def is_gone(known: Registered) -> bool:
            try:
                found = self._folders.read(_described(known), partial(_look, known))
            except RayscribeError:
                return False
            return found.state.number == 0 and not known.is_running

        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            known = all_registered()
            return [run.url for run, is_gone in zip(known, pool.map(is_gone, known), strict=True) if is_gone]

    def attempts(self, url: str) -> list[Attempt]:
        """Returns the newest attempts, by number; empty if the folder cannot be read."""
        known = self.known(url)
        return self._attempts_of(self._run(known), known)

    def _attempts_of(self, run: Run, known: Registered) -> list[Attempt]:
        with suppress(RayscribeError):
            return self._folders.read(run, lambda folder: _attempts(folder, run, known))
        return []

    def events(self, url: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Returns the entries of the run's journal as events."""
        run = self.run(url)

        def read(folder: RunFolder) -> list[Event]:
            return [*events_of(run, Journal(folder, most_bytes=MAX_JOURNAL_BYTES).entries())]

        return self._folders.read(run, read)[after : after + limit]

    def logs(
        self, url: str, *, attempt: int | None = None, source: str | None = None, cursor: str | None = None
    ) -> LogPage:
        """Returns the workers' lines since the cursor; the driver's output is only in its terminal.

        Raises:
            ConflictError: there is no attempt yet.
            NotFoundError: the attempt does not exist.
        """
        known = self.known(url)
        run = self._run(known)
        if run.attempt == 0:
            raise ConflictError(f"{run.id} has no attempt yet ({run.state}: {run.reason})")
        number = attempt if attempt is not None else run.attempt
        chosen = next((item for item in self._attempts_of(run, known) if item.number == number), None)
        if chosen is None:
            raise NotFoundError(f"{run.id} has no attempt {number}: it has {run.attempt}")
        return read_logs(self._folders, run, chosen, source=source, cursor=cursor, driver_log=_no_driver_log)

    def stop(self, url: str) -> Run:
        """Requests the driver's stop, before which it saves a last checkpoint; does nothing if the run has ended.

        Raises:
            ConflictError: the driver's process is not visible from this machine.
        """
        known = self.known(url)
        run = self._run(known)
        if run.state.ended:
            return run
        if known.is_running is None:
            where = f"on {host_of(known.process)}, as" if known.process else "by"
            process = f"process {known.process_id}" if known.process else "a process that is not known here"
            raise ConflictError(
                f"{run.id} was started without a queue, {where} {process}: press Ctrl-C where it runs, or send it "
                "SIGTERM there; it saves a last checkpoint"
            )
        with suppress(ProcessLookupError):
            os.kill(known.process_id, signal.SIGTERM)
        return run.model_copy(update={"stop_requested_s": time.time(), "reason": f"stopping · {run.reason}"})

    def resume(self, url: str) -> Run:
        """Raises ConflictError, since no service can start the run."""
        name = self.known(url).name
        raise ConflictError(
            f"{name} was started without a queue, so only the command line continues it: rayscribe resume {url}"
        )


def _position_of(known: Registered) -> Position:
    return known.created_s, known.name


def _tags_of(known: Registered) -> list[str]:
    """Returns the tags of a run, which are for filters and not read by training."""
    return sorted((known.config.get("job") or {}).get("tags") or ())


def _is_wanted(known: Registered, wanted: RunFilter) -> bool:
    of_user = wanted.user in (None, current_user())
    return of_user and wanted.queue is None and (wanted.tag is None or wanted.tag in _tags_of(known))


def _no_driver_log(start: int, size: int) -> bytes:
    raise NotFoundError("the driver's output is not kept in the run folder")


def _described(known: Registered) -> Run:
    gang = Gang(num_workers=1, resources_per_worker={})
    with suppress(ValueError):  # written by another version
        gang = gang_of(ScalingPart.model_validate(known.config.get("scaling") or {}))
        # Without a queue, no CPUs are held for Ray Data, which uses the rest of the machine.
        gang = gang.model_copy(update={"extra": {}})
    return Run(
        id=known.name,
        uid="",
        user=current_user(),
        queue="",
        priority=0,
        address=known.address or "",
        config=dict(known.config),
        package="",
        gang=gang,
        tags=_tags_of(known),
        depends_on=[],
        max_retries=0,
        run_folder=known.url,
        submitted_s=known.created_s,
        queued_s=known.created_s,
        updated_s=known.ended_s or known.started_s,
        exit_code=known.exit_code,
    )


def _look(known: Registered, folder: RunFolder) -> _Found:
    state = Journal(folder, most_bytes=MAX_JOURNAL_BYTES).read()
    attempt = state.attempt
    if attempt == 0:
        return _Found(state, attempt, None, is_own=False)
    progress = progress_of(read_status(folder, attempt))
    trains = next((group.attempt for group in state.groups if group.id == state.group), attempt)
    if trains != attempt and progress is not None and progress.phase == ENDED:
        # If the attempt before has continued since, the newest was refused.
        other = progress_of(read_status(folder, trains))
        if other is not None and other.at_s > progress.at_s:
            attempt, progress = trains, other
    began = (folder.read_json(f"{ATTEMPTS}/{attempt}/{ATTEMPT}") or {}) if known.is_running else {}
    # A driver adds the attempt to the journal before it writes this file.
    is_later = progress is not None and progress.at_s >= known.started_s
    return _Found(state, attempt, progress, began["process"] == known.process if "process" in began else is_later)


def _state_by_code(known: Registered) -> RunState:
    if known.exit_code is None:
        # A guess, since only the folder has more about a driver that cannot be seen from here.
        return RunState.FAILED if known.is_running is False else RunState.SETTING_UP
    if known.exit_code in STOPPED_CODES:
        return RunState.STOPPED
    return RunState.FAILED if known.exit_code else RunState.SUCCEEDED


def _state_of(known: Registered, found: _Found) -> tuple[RunState, str]:
    state, progress = found.state, found.progress
    if known.is_running:
        if progress is None or not found.is_own or progress.phase not in PHASES:
            return RunState.SETTING_UP, "starts, or prepares its data"
        return PHASES[progress.phase], describe(progress)
    if state.number == 0 and (known.attempt or not known.exit_code):
        never = known.attempt == 0 and known.exit_code is None
        gone = f"it has written nothing to {known.url}, or that folder was removed" if never else None
        return _state_by_code(known), gone or f"its folder does not exist: {known.url}"
    if state.finished is not None and state.finished.attempt == found.attempt:
        if known.is_running is False and known.exit_code == RefusedError.exit_code:
            return RunState.FAILED, headline_of(known.reason)
        return RunState.SUCCEEDED, _finished(known, progress)
    return _state_elsewhere(known, found) if known.is_running is None else _state_ended(known, found)


def _finished(known: Registered, progress: Progress | None) -> str:
    detail = progress.detail if progress is not None and progress.phase == ENDED else ""
    if detail.startswith("stopped") or (known.is_running is False and known.exit_code != 0):
        again = f"the same command, or `rayscribe resume {known.name}`, completes it"
        return f"finished; its driver ended before the run folder was complete: {again}"
    return detail or "finished"


def _state_ended(known: Registered, found: _Found) -> tuple[RunState, str]:
    if known.exit_code is not None:
        return _state_by_code(known), headline_of(known.reason) or "ended"
    came = f" at {describe(found.progress)}" if found.progress is not None else ""
    newest = found.state.checkpoints[-1].name if found.state.checkpoints else "no checkpoint"
    how = "ended when this machine was restarted" if known.went_with_restart else "was killed"
    return RunState.FAILED, f"its driver {how}{came} · it has {newest}"


def _state_elsewhere(known: Registered, found: _Found) -> tuple[RunState, str]:
    """Returns the state of a run whose driver cannot be seen from here, from its status; without updates, FAILED."""
    progress = found.progress
    if progress is not None and progress.phase == ENDED:
        stopped = progress.detail.startswith("stopped")
        return RunState.STOPPED if stopped else RunState.FAILED, headline_of(progress.detail) or "ended"
    text = describe(progress) if progress is not None else "starts on another machine"
    silent_s = time.time() - max(known.started_s, progress.at_s if progress is not None else 0.0)
    if silent_s > STALE_S:
        newest = found.state.checkpoints[-1].name if found.state.checkpoints else "no checkpoint"
        where = f", on {host_of(known.process)}," if known.process else ""
        return RunState.FAILED, (
            f"{text} · no update for {format_duration(silent_s)}: its driver{where} cannot be seen from here, and has "
            f"probably ended · it has {newest}"
        )
    state = PHASES.get(progress.phase, RunState.SETTING_UP) if progress is not None else RunState.SETTING_UP
    return state, text


def _attempts(folder: RunFolder, run: Run, known: Registered) -> list[Attempt]:
    """Returns the newest attempts, with checkpoints from the journal, which may have been removed since."""
    state, finished = State(), set[int]()
    resume_from, last_step = dict[int, str](), dict[int, int]()
    for entry in Journal(folder, most_bytes=MAX_JOURNAL_BYTES).entries():
        state = fold(state, entry)
        if state.finished is not None:
            # Kept here, since a later attempt that continues training resets `state.finished`.
            finished.add(state.finished.attempt)
        if entry["kind"] == "checkpoint":
            made = entry["checkpoint"]
            last_step[made["attempt"]] = max(made["step"], last_step.get(made["attempt"], 0))
        # Before its own first checkpoint, an attempt uploads checkpoints that the attempt before has left, and drops
        # damaged ones.
        if state.attempt not in last_step:
            resume_from.pop(state.attempt, None)
            if state.checkpoints:
                resume_from[state.attempt] = state.checkpoints[-1].name
    newest = range(max(1, state.attempt - MAX_ATTEMPTS + 1), state.attempt + 1)
    found = [_attempt(folder, number, run, known, number in finished) for number in newest]
    return [
        each.model_copy(update={"resume_from": resume_from.get(each.number), "last_step": last_step.get(each.number)})
        for each in found
    ]


def _attempt(folder: RunFolder, number: int, run: Run, known: Registered, has_finished: bool) -> Attempt:
    progress = progress_of(read_status(folder, number))
    began = folder.read_json(f"{ATTEMPTS}/{number}/{ATTEMPT}") or {}
    created_s = seconds_of(began["started"]) if began.get("started") else known.started_s
    is_newest = number == run.attempt
    lives = is_newest and not run.state.ended
    detail = progress.detail if progress is not None else ""
    was_stopped = (is_newest and run.state == RunState.STOPPED) or detail.startswith("stopped")
    cause = Cause.SUCCEEDED if has_finished else Cause.STOPPED if was_stopped else Cause.ENTRYPOINT
    return Attempt(
        run_id=run.id,
        number=number,
        submission_id="",
        state=AttemptState.SUBMITTED if lives else AttemptState.ENDED,
        gang=run.gang,
        created_s=created_s,
        ended_s=None if lives else max(created_s, progress.at_s if progress is not None else created_s),
        cause=None if lives else cause,
        exit_code=run.exit_code if is_newest and not lives else None,
        message="" if lives else headline_of(detail),
    )


def _unregistered(url: str) -> Registered:
    """Returns an entry, read from its folder, for a run that another user or machine has started.

    Raises:
        NotFoundError: no run is in the folder.
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
    except (RayscribeError, *UNREADABLE) as error:
        raise NotFoundError(f"no run can be read in {url}: {error}") from None
    if not isinstance(config, dict) or state.number == 0:
        raise NotFoundError(f"no run is in {url}: use a run's folder, or a name that `rayscribe list` shows")
    return Registered(url, config, "", began_s, began_s, "", attempt=state.attempt)


def events_of(run: Run, entries: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """Yields an event per journal entry, and a last event with the run's end unless the journal has it."""
    number = 0
    before: RunState | None = None
    trained: set[Any] = set()
    for number, entry in enumerate(entries, start=1):
        kind = str(entry.get("kind"))
        begins = kind == "opened" and "group" not in entry
        state = RunState.SETTING_UP if begins else STATES.get(kind, before or RunState.TRAINING)
        yield Event(
            number=number,
            run_id=run.id,
            attempt=int(entry.get("attempt") or 0),
            at_s=seconds_of(str(entry["at"])),
            state=state,
            before=before,
            cause=kind,
            text=_text(kind, entry, again=entry.get("attempt") in trained),
        )
        if kind == "opened" and "group" in entry:
            trained.add(entry.get("attempt"))
        before = state
    if run.state.ended and before not in (None, run.state):
        # The journal does not have this end, since a driver may be killed.
        yield Event(
            number=number + 1,
            run_id=run.id,
            attempt=run.attempt,
            at_s=run.ended_s or run.updated_s,
            state=run.state,
            before=before,
            cause="ended",
            text=run.reason,
        )


def _text(kind: str, entry: Mapping[str, Any], *, again: bool) -> str:
    match kind:
        case "opened" if "group" in entry:
            reason = f", after: {entry['reason']}" if entry.get("reason") else ""
            trains = "trains again" if again else "trains"
            workers = "its workers" if entry.get("workers") is None else counted(entry["workers"], "worker")
            text = f"attempt {entry['attempt']} {trains}, with {workers}{reason}"
        case "opened":
            text = f"attempt {entry['attempt']} begins"
        case "prepared":
            text = f"the data of attempt {entry['attempt']} is prepared"
        case "resized":
            text = f"from step {entry['step']} on {entry['to']} workers, before {entry['from']}"
        case "checkpoint":
            made = entry["checkpoint"]
            metrics = made.get("metrics", {})
            wer, full = metrics.get("eval_wer"), metrics.get("eval_full_context_wer")
            text = f"{made['name']} is stored{'' if wer is None else f' · WER {both_contexts(wer, full)}'}"
        case "quarantined":
            text = f"{entry['name']} is damaged and was left out"
        case "finished":
            text = f"attempt {entry['attempt']} has finished the run"
        case _:
            text = kind
    return text
