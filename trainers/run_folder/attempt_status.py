"""Status and logs that an attempt writes while it runs. Imports no torch.

attempts/<k>/status.json                   replaced every few seconds by `StatusWriter`, at the end by `FinalStatus`
attempts/<k>/logs/rank-<r>-<group>.log     output of a worker, see `worker_logs`
attempts/<k>/logs/driver.log               output of the driver, once the service has archived it; further pieces
                                           of a long output are driver-1.log, driver-2.log, …
"""

import json
import math
import re
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from trainers.config.loader import same_command
from trainers.config.locations import cache_url_of
from trainers.config.schema import AnyConfig, ScriptConfig
from trainers.distributed.console import is_main_process
from trainers.errors import FencedError, Interruption, RayscribeError, StorageError
from trainers.run_folder.journal import Journal, State, accepted_metrics, deduplicate
from trainers.run_folder.layout import ATTEMPTS, CHECKPOINTS, RunFolder
from trainers.storage.json_files import finite

STATUS = "status.json"
LOGS = "logs"
DRIVER_LOG = "driver"
# Far more than any status has; a file that another program wrote may have any size.
MAX_STATUS_BYTES = 256 << 10
MAX_WERS = 100
_WORKER_LOG = re.compile(r"rank-(\d+)-([^/]+)\.log")

WRITE_INTERVAL_S = 2.0
# An unchanged status is written again after this time, so that readers can tell a long step from a dead process.
HEARTBEAT_S = 20.0
# How long the last write may delay the end of a process.
JOIN_TIMEOUT_S = 15.0


class Phase(StrEnum):
    """The phase of an attempt."""

    PREPARING_DATA = "PREPARING_DATA"
    WAITING_FOR_RESOURCES = "WAITING_FOR_RESOURCES"
    TRAINING = "TRAINING"
    EVALUATING = "EVALUATING"
    ENDED = "ENDED"


def status_key(attempt: int) -> str:
    """Returns the key of an attempt's status in the run folder."""
    return f"{ATTEMPTS}/{attempt}/{STATUS}"


def worker_log_key(attempt: int, rank: int, group: str) -> str:
    """Returns the key of a worker's log in the run folder."""
    return f"{ATTEMPTS}/{attempt}/{LOGS}/rank-{rank}-{group}.log"


def driver_log_key(attempt: int, piece: int = 0) -> str:
    """Returns the key of piece number `piece` (from 0) of an archived driver log in the run folder."""
    name = f"{DRIVER_LOG}-{piece}" if piece else DRIVER_LOG
    return f"{ATTEMPTS}/{attempt}/{LOGS}/{name}.log"


def worker_logs(folder: RunFolder, attempt: int) -> list[tuple[int, str, str]]:
    """Returns rank, worker group and key of each worker's log of an attempt, by rank."""
    found = []
    for entry in folder.storage.list_files(f"{ATTEMPTS}/{attempt}/{LOGS}"):
        match = _WORKER_LOG.fullmatch(entry.key.rpartition("/")[2])
        if match:
            found.append((int(match[1]), match[2], entry.key))
    return sorted(found)


def read_status(folder: RunFolder, attempt: int) -> dict[str, Any] | None:
    """Returns an attempt's last status, see `StatusWriter.update`; None if it is missing or invalid."""
    key = status_key(attempt)
    if not folder.storage.exists(key):
        return None
    try:
        status = json.loads(folder.storage.read_small(key, MAX_STATUS_BYTES))
    except ValueError:
        return None
    return status if isinstance(status, dict) else None


# The WER of a validation in percent, and its WER at the full context; None if not scored.
Wers = tuple[float, float | None]


def validations(folder: RunFolder, state: State, last_step: int) -> list[dict[str, Any]]:
    """Returns the metrics of each validation of the run up to a step, in order, without that of the base."""
    lines = map(json.loads, deduplicate(accepted_metrics(folder, state)).splitlines())
    return [line for line in lines if "eval_wer" in line and 0 < line["step"] <= last_step]


def best_of(found: Iterable[Wers]) -> dict[str, float]:
    """Returns `best_wer` and, of the same validation, `best_full_context_wer`, each if known."""
    best = min(found, key=lambda pair: pair[0], default=(None, None))
    names = ("best_wer", "best_full_context_wer")
    return {name: wer for name, wer in zip(names, best, strict=True) if wer is not None}


def scores_of(state: State, validated: Iterable[Wers] = ()) -> dict[str, float]:
    """Returns `best_wer` of all validations and `test_wer`, both also at the full context, each if known. Percent.

    `validated` are WERs from the metrics, since the checkpoint with the best WER is not kept if another metric ranks.
    The values of `base_wers` are included.
    """
    result = state.finished.result if state.finished is not None else {}
    of_program = {"eval_wer": (result.get("metrics") or {}).get("wer")}
    # The final score comes first, since it always has the full context.
    found = wers_of([result.get("validation") or {}, *(each.metrics for each in state.checkpoints), of_program])
    tested = result.get("test") or {}
    scores = {"test_wer": tested.get("wer"), "test_full_context_wer": (tested.get("full_context") or {}).get("wer")}
    known = {name: wer for name, wer in scores.items() if wer is not None}
    return {**best_of([*found, *validated]), **known, **base_wers(state)}


def base_wers(state: State) -> dict[str, float]:
    """Returns the known values of `base_wer` and others of the initial weights, see `StatusWriter.update`."""
    scores = state.base.scores if state.base is not None else {}
    wers = dict[str, float | None]()
    for prefix, totals in (("base", scores.get("validation", {})), ("base_test", scores.get("test", {}))):
        full = totals.get("full_context")
        # At a shorter context, weights that were not trained at it recognize next to nothing.
        wers |= {f"{prefix}_wer": totals.get("wer")} if full is None else {f"{prefix}_full_context_wer": full["wer"]}
    return {name: wer for name, wer in wers.items() if wer is not None}


def restarts_of(state: State, attempt: int) -> dict[str, Any]:
    """Returns fields of a status: number and last reason of an attempt's worker restarts; empty without restarts."""
    groups = [group for group in state.groups if group.attempt == attempt]
    return {"restarts": len(groups) - 1, "restart_reason": groups[-1].reason} if len(groups) > 1 else {}


def wers_of(found: Iterable[Mapping[str, Any]]) -> list[Wers]:
    """Returns the WERs of validations, by their metrics, without those that are missing, not finite or refused."""
    passed = (line for line in found if not line.get("eval_refused"))
    pairs = [(line.get("eval_wer"), line.get("eval_full_context_wer")) for line in passed]
    return [(float(wer), full) for wer, full in pairs if isinstance(wer, int | float) and math.isfinite(wer)]


class StatusWriter:
    """Writes an attempt's status in a thread; writes nothing if the attempt has no number yet.

    A slow or unavailable storage does not delay the attempt. With `after_workers`, keeps fields of the workers' last
    status that this writer does not set, such as the progress of training.
    """

    def __init__(self, folder: RunFolder, attempt: int | None, *, after_workers: bool = False):
        self._folder, self._attempt, self._after_workers = folder, attempt, after_workers
        self._status: dict[str, Any] = {}
        self._condition = threading.Condition()
        self._urgent = self._changed = self._closed = False
        self._written_s = time.monotonic() - HEARTBEAT_S
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._attempt is not None:
            self._thread = threading.Thread(target=self._write_loop, name="status", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Writes the last change, and ends the thread; waits for at most JOIN_TIMEOUT_S."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(JOIN_TIMEOUT_S)

    def update(self, phase: Phase, **numbers: Any) -> None:
        """Changes the status; a new phase is written immediately.

        `numbers` are the changed values among `step`, `max_steps`, `loss`, `wer` and `full_context_wer` (percent, of
        the last validation), `wers` (of the last MAX_WERS validations), `best_wer` (of all validations), `test_wer`,
        `best_full_context_wer` and `test_full_context_wer`, `base_wer` and `base_test_wer` (of the weights that the run
        began with) or, if the model is trained at a shorter context, `base_full_context_wer` and
        `base_test_full_context_wer`, `eta_s`, `checkpoint_s` (time that storing the last
        checkpoint took), `workers` (of an elastic run), those of `restarts_of`, and `detail`, which the next change
        replaces.
        """
        with self._condition:
            self._urgent = self._urgent or phase != self._status.get("phase")
            self._status = {**self._status, "detail": "", **numbers, "phase": phase}
            self._changed = True
            self._condition.notify()

    def pause(self) -> None:
        """Stops writing until `update` is called again; another process may write meanwhile."""
        with self._condition:
            self._status = {}
            self._changed = self._urgent = False

    def _write_loop(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(self._is_due, timeout=WRITE_INTERVAL_S)
                if self._closed and not self._changed:
                    return
                if not self._is_due():
                    continue
                status, self._changed, self._urgent = self._status, False, False
            self._write(status)
            self._written_s = time.monotonic()

    def _is_due(self) -> bool:
        age_s = time.monotonic() - self._written_s
        old = bool(self._status) and age_s >= HEARTBEAT_S
        return self._closed or self._urgent or old or (self._changed and age_s >= WRITE_INTERVAL_S)

    def _write(self, status: dict[str, Any]) -> None:
        assert self._attempt is not None
        try:
            if self._after_workers:
                status = {**(read_status(self._folder, self._attempt) or {}), **status}
            status = {name: finite(value) for name, value in {**status, "at_s": time.time()}.items()}
            self._folder.storage.write_bytes(status_key(self._attempt), json.dumps(status, allow_nan=False).encode())
        except StorageError:
            # Other code reports an unavailable storage; an attempt does not fail because of its status.
            return


class FinalStatus:
    """Wraps a complete attempt, and writes its last status, with its result in one line (`headline`)."""

    def __init__(self, config: AnyConfig, folder: RunFolder, attempt: int | None):
        self.attempt, self.headline = attempt, ""
        self._config, self._folder = config, folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Writes the last status, on the main process only; makes an Interruption say how to continue the run."""
        if isinstance(error, Interruption):
            error.left = self._left()
        # Another attempt may have this attempt's number by now.
        if isinstance(error, FencedError) or not is_main_process():
            return
        detail = self.headline if error is None else str(error) or type(error).__name__
        with StatusWriter(self._folder, self.attempt, after_workers=True) as status:
            status.update(Phase.ENDED, detail=detail, eta_s=None, **self._scores())

    def _scores(self) -> dict[str, float]:
        state, validated = self._state(), list[Wers]()
        # A program's metrics are not in the run's metrics files.
        if not isinstance(self._config, ScriptConfig):
            with suppress(RayscribeError):
                validated = wers_of(validations(self._folder, state, sys.maxsize))
        return scores_of(state, validated)

    def _state(self) -> State:
        try:
            return Journal(self._folder).read()
        except RayscribeError:
            return State()

    def _left(self) -> str:
        checkpoints = self._state().checkpoints
        if not checkpoints:
            if isinstance(self._config, ScriptConfig):
                return "no checkpoint was made; the same command starts the program again"
            return f"the prepared data stays in {cache_url_of(self._config)}; the same command continues from there"
        # The last has the most steps.
        newest, folder = checkpoints[-1].name, self._folder.storage.url(CHECKPOINTS)
        again = same_command(str(self._config.run.name))
        return f"{newest} is in {folder}; {again}, or `rayscribe resume`, continues from there"
