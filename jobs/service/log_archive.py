"""Archives the logs of drivers in the run folders, where they can be read after the cluster is gone."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from jobs.clusters.registry import Clusters
from jobs.errors import JobLostError
from jobs.model import Attempt, Run
from jobs.service.run_folders import RunFolders
from trainers.errors import RayscribeError

log = logging.getLogger(__name__)

# How often the log of an active driver is archived, in case its cluster is lost.
INTERVAL_S = 30.0
# How long archiving the log of an ended driver is retried, while Ray keeps it.
RETRY_FOR_S = 3600.0


@dataclass
class _Progress:
    """How many bytes of a log are archived, and when that was last tried."""

    tried_s: float = float("-inf")
    length: int = 0


class DriverLogArchive:
    """Archives complete logs, again when they have grown. An error never stops a run."""

    def __init__(
        self, clusters: Clusters, folders: RunFolders, clock: Callable[[], float], hook: Callable[[str], None]
    ):
        """Archives nothing yet.

        Args:
            clusters: Source of the logs.
            folders: Destination of the logs.
            clock: Seconds from any origin.
            hook: Called before and after each write, with its name.
        """
        self._clusters, self._folders, self._clock, self._hook = clusters, folders, clock, hook
        self._progress: dict[str, _Progress] = {}
        self._failed: dict[str, tuple[Run, Attempt, float]] = {}

    def archive(self, run: Run, attempt: Attempt) -> None:
        """Archives the log of an active driver, if the last time was long enough ago."""
        progress = self._progress.setdefault(attempt.submission_id, _Progress())
        if self._clock() - progress.tried_s >= INTERVAL_S:
            self._archive(run, attempt, progress)

    def archive_last(self, run: Run, attempt: Attempt) -> None:
        """Archives the log of a driver that has ended; retried later if it fails."""
        if self._archive(run, attempt, self._progress.setdefault(attempt.submission_id, _Progress())):
            del self._progress[attempt.submission_id]
        else:
            self._failed[attempt.submission_id] = (run, attempt, self._clock() + RETRY_FOR_S)

    def retry_failed(self) -> None:
        """Retries logs that could not be archived at the end of their attempts."""
        for submission_id, (run, attempt, until_s) in list(self._failed.items()):
            progress = self._progress[submission_id]
            if self._clock() - progress.tried_s < INTERVAL_S:
                continue
            if self._archive(run, attempt, progress) or self._clock() > until_s:
                del self._failed[submission_id], self._progress[submission_id]

    def _archive(self, run: Run, attempt: Attempt, progress: _Progress) -> bool:
        """Archives the log if it has grown; False if that failed and may work later."""
        progress.tried_s = self._clock()
        try:
            text = self._clusters.log(run.address, attempt.submission_id)
            if len(text) > progress.length:
                self._hook("logs.archive:before")
                self._folders.write_driver_log(run, attempt.number, text)
                self._hook("logs.archive:after")
                progress.length = len(text)
        except JobLostError as error:
            log.warning("%s: the rest of the driver's log is lost: %s", attempt.submission_id, error)
        except RayscribeError as error:
            log.warning("%s: the driver's log is not archived: %s", attempt.submission_id, error)
            return False
        return True
