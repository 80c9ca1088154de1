"""What drivers print, copied into the run folders, for the time when their cluster has gone."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from jobs.clusters.registry import Clusters
from jobs.model import Attempt, Run
from jobs.service.run_folders import RunFolders
from trainers.errors import RayscribeError

log = logging.getLogger(__name__)

# A live driver's output is copied this often, for the case that its cluster goes.
EVERY_S = 30.0
# An ended one's that could not be copied is tried again for this long, while Ray keeps it.
LATE_S = 3600.0


@dataclass
class _Copy:
    """How much of an attempt's output is home, and when that was last tried."""

    tried_s: float = float("-inf")
    length: int = 0


class DriverLogs:
    """Copies whole logs, each longer than the one before. That one cannot be copied never stops a run."""

    def __init__(self, clusters: Clusters, folders: RunFolders, clock: Callable[[], float], at: Callable[[str], None]):
        """Copies nothing yet.

        Args:
            clusters: Have the logs.
            folders: Get them.
            clock: Seconds from any origin.
            at: Told before and after each copy, by name.
        """
        self._clusters, self._folders, self._clock, self._at = clusters, folders, clock, at
        self._copies: dict[str, _Copy] = {}
        self._late: dict[str, tuple[Run, Attempt, float]] = {}

    def keep(self, run: Run, attempt: Attempt) -> None:
        """Copies a live driver's output, if the last copy is old enough."""
        copy = self._copies.setdefault(attempt.submission_id, _Copy())
        if self._clock() - copy.tried_s >= EVERY_S:
            self._copy(run, attempt, copy)

    def keep_last(self, run: Run, attempt: Attempt) -> None:
        """Copies the output of a driver that has ended; what cannot be copied now is tried again later."""
        if self._copy(run, attempt, self._copies.setdefault(attempt.submission_id, _Copy())):
            del self._copies[attempt.submission_id]
        else:
            self._late[attempt.submission_id] = (run, attempt, self._clock() + LATE_S)

    def catch_up(self) -> None:
        """Tries again what could not be copied at an attempt's end."""
        for submission_id, (run, attempt, until_s) in list(self._late.items()):
            copy = self._copies[submission_id]
            if self._clock() - copy.tried_s < EVERY_S:
                continue
            if self._copy(run, attempt, copy) or self._clock() > until_s:
                del self._late[submission_id], self._copies[submission_id]

    def _copy(self, run: Run, attempt: Attempt, copy: _Copy) -> bool:
        """Copies what is new; False where that could not be."""
        copy.tried_s = self._clock()
        try:
            text = self._clusters.log(run.address, attempt.submission_id)
            if len(text) > copy.length:
                self._at("logs.archive:before")
                self._folders.keep_driver_log(run, attempt.number, text)
                self._at("logs.archive:after")
                copy.length = len(text)
        except RayscribeError as error:
            log.warning("%s: the driver's log is not archived: %s", attempt.submission_id, error)
            return False
        return True
