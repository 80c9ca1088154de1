"""Archives the logs of drivers in the run folders, where they can be read after the cluster has ended."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from jobs.clusters.registry import Clusters
from jobs.clusters.timeouts import CallTimeoutError, call_with_timeout
from jobs.errors import JobLostError
from jobs.model import Attempt, Run
from jobs.service.run_folders import MAX_DRIVER_BYTES, PIECE_BYTES, RunFolders
from trainers.errors import RayscribeError

log = logging.getLogger(__name__)

# Seconds between two archivings of an active driver's log, in case its cluster is lost.
INTERVAL_S = 30.0
# Seconds for which archiving the log of an ended driver is retried, while Ray keeps the log.
RETRY_FOR_S = 3600.0
LAST_LINES = 1000
# Longest wait of a round for all logs together, and of an attempt's end for its log; threads continue archiving.
ROUND_WAIT_S = 2.0
END_WAIT_S = 30.0
# Largest number of logs that are archived at the same time.
MAX_WORKERS = 4


@dataclass
class _Progress:
    """Archived bytes of a log, time of the last try, and success of the log's last part (None if not known yet)."""

    tried_s: float = float("-inf")
    length: int = 0
    busy: bool = False
    ended_s: float | None = None
    outcome: bool | None = None


class DriverLogArchive:
    """Archives logs in pieces, the last again if it has grown. An error or a slow log never stops a run."""

    def __init__(
        self, clusters: Clusters, folders: RunFolders, clock: Callable[[], float], hook: Callable[[str], None]
    ):
        """Archives nothing yet; `clock` may be set back, and `hook` is called before and after each write."""
        self._clusters, self._folders, self._clock, self._hook = clusters, folders, clock, hook
        self._progress: dict[str, _Progress] = {}
        self._failed: dict[str, tuple[Run, Attempt, float]] = {}
        self._wait_s = ROUND_WAIT_S

    def begin_round(self) -> None:
        """Retries logs that could not be archived at the end of their attempts."""
        self._wait_s = ROUND_WAIT_S
        for submission_id, (run, attempt, failed_s) in list(self._failed.items()):
            progress = self._progress[submission_id]
            if not progress.outcome:
                self._run_if_due(run, attempt, progress)
            if progress.outcome or self._clock() - failed_s > RETRY_FOR_S:
                del self._failed[submission_id], self._progress[submission_id]

    def archive(self, run: Run, attempt: Attempt) -> None:
        """Archives the log of an active driver, if INTERVAL_S have passed since the last time."""
        self._run_if_due(run, attempt, self._progress.setdefault(attempt.submission_id, _Progress()))

    def archive_last(self, run: Run, attempt: Attempt) -> bool:
        """Archives the log of a driver that has ended; retries later if that fails. Returns True when done.

        Returns False, for at most END_WAIT_S, while archiving continues, so that followers of the log see its end.
        """
        progress = self._progress.setdefault(attempt.submission_id, _Progress())
        if progress.ended_s is None:
            progress.ended_s = self._clock()
        if progress.outcome is None:
            self._run(run, attempt, progress)
        if progress.outcome is None and not self._passed(progress.ended_s, END_WAIT_S):
            return False
        if progress.outcome:
            del self._progress[attempt.submission_id]
        else:
            self._failed[attempt.submission_id] = (run, attempt, self._clock())
        return True

    def _passed(self, since_s: float, interval_s: float) -> bool:
        return not 0 <= self._clock() - since_s < interval_s

    def _run_if_due(self, run: Run, attempt: Attempt, progress: _Progress) -> None:
        if self._passed(progress.tried_s, INTERVAL_S):
            self._run(run, attempt, progress)

    def _run(self, run: Run, attempt: Attempt, progress: _Progress) -> None:
        if progress.busy or sum(item.busy for item in self._progress.values()) >= MAX_WORKERS:
            return
        progress.busy, progress.tried_s = True, self._clock()
        start_s = time.monotonic()
        try:
            call_with_timeout(partial(self._work, run, attempt, progress), max(0.0, self._wait_s))
        except CallTimeoutError:
            log.info("%s: the driver's log takes long to archive", attempt.submission_id)
        self._wait_s -= time.monotonic() - start_s

    def _work(self, run: Run, attempt: Attempt, progress: _Progress) -> None:
        last = progress.ended_s is not None
        outcome = False
        try:
            self._copy(run, attempt, progress, last)
            outcome = True
        except JobLostError as error:
            log.warning("%s: the rest of the driver's log is lost: %s", attempt.submission_id, error)
            outcome = True
        except Exception as error:
            # Any error, since in `begin_round` nothing else isolates one run's error from other runs.
            is_defect = not isinstance(error, RayscribeError)
            log.warning("%s: the driver's log is not archived: %s", attempt.submission_id, error, exc_info=is_defect)
        finally:
            if last:
                progress.outcome = outcome
            progress.busy = False

    def _copy(self, run: Run, attempt: Attempt, progress: _Progress, last: bool) -> None:
        address, submission_id = run.address, attempt.submission_id
        while progress.length < MAX_DRIVER_BYTES:
            number = progress.length // PIECE_BYTES
            text = self._clusters.log(address, submission_id, number * PIECE_BYTES, PIECE_BYTES)
            if number * PIECE_BYTES + len(text) > progress.length:
                self._write(run, attempt, number, text)
                progress.length = number * PIECE_BYTES + len(text)
            if len(text) < PIECE_BYTES:
                return
        if last:
            notice = (
                f"\n--- only the first {MAX_DRIVER_BYTES // 1_000_000} MB of this log are archived; its last lines:\n"
            )
            size = PIECE_BYTES - len(notice)
            rest = self._clusters.log(address, submission_id, 0, size, last_lines=LAST_LINES)
            self._write(run, attempt, MAX_DRIVER_BYTES // PIECE_BYTES, notice.encode() + rest)

    def _write(self, run: Run, attempt: Attempt, number: int, text: bytes) -> None:
        self._hook("logs.archive:before")
        self._folders.write_driver_log(run, attempt.number, number, text)
        self._hook("logs.archive:after")
