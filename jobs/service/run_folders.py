"""What attempts left in their run folders, read by the service. A folder that cannot be read says nothing, not lies."""

import logging
import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

from jobs.clusters.timeouts import CallTimeoutError, call_with_timeout
from jobs.model import Progress, Run
from trainers.errors import RayscribeError, StorageError
from trainers.run_folder.attempt_status import driver_log_key, read_status
from trainers.run_folder.checkpoints import list_checkpoints
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)

# What reading a folder may raise in which anybody may have written anything.
ODD = (RayscribeError, ValueError, TypeError, LookupError, AttributeError, RecursionError, OSError)

# One storage that hangs must not keep the controller from all other runs: it is asked this long, and then left alone.
DEADLINE_S = 10.0
PAUSE_S = 60.0
# What a large log may take beyond that.
SLOWEST_BYTES_PER_S = 1e6


def folder_of(run: Run) -> RunFolder:
    """The run folder, as the run's config says it is reached. Others write there: no link leads out of it."""
    return RunFolder(open_storage(run.run_folder, s3_endpoint_url=run.config["run"]["s3_endpoint_url"], confined=True))


class RunFolders:
    """Reads run folders for one who has many others to look at."""

    def __init__(self, *, deadline_s: float = DEADLINE_S, clock: Callable[[], float] = time.monotonic):
        """Asks nothing yet.

        Args:
            deadline_s: How long a storage may take to answer.
            clock: Seconds from any origin.
        """
        self._deadline_s, self._clock = deadline_s, clock
        self._silent: dict[str, float] = {}

    def progress(self, run: Run, attempt: int) -> Progress | None:
        """What an attempt wrote last; None where it wrote nothing, or the folder cannot be read from here."""

        def read() -> Progress | None:
            raw: dict[str, Any] | None = self.ask(run, lambda folder: read_status(folder, attempt))
            return Progress.model_validate({name: _finite(value) for name, value in raw.items()}) if raw else None

        return self._unless_odd(run, read, None)

    def last_checkpoint(self, run: Run) -> tuple[str, int] | None:
        """Name and step of the newest whole checkpoint; None where there is none, or the folder cannot be read."""
        return self._unless_odd(run, lambda: self._newest(run), None)

    def checkpoints(self, run: Run) -> list[str]:
        """Names of all whole checkpoints, by step; none where the folder cannot be read."""

        def names() -> list[str]:
            return [item.name for item in sorted(self.ask(run, list_checkpoints), key=lambda item: item.step)]

        return self._unless_odd(run, names, [])

    def last_attempt(self, run: Run) -> int:
        """Number of the newest attempt in the folder, whoever asked for it; 0 where none is, or it cannot be read."""
        return self._unless_odd(run, lambda: self.ask(run, lambda folder: Journal(folder).read().attempt), 0)

    def keep_driver_log(self, run: Run, attempt: int, text: bytes) -> None:
        """Writes the driver's output into the run folder.

        Raises:
            StorageError: it cannot be written.
        """
        deadline_s = self._deadline_s + len(text) / SLOWEST_BYTES_PER_S
        self.ask(run, lambda folder: folder.storage.write_bytes(driver_log_key(attempt), text), deadline_s)

    def resume_words(self, run: Run) -> str:
        """What the next attempt starts from, in words."""
        asked = str(run.config["run"]["resume"])
        try:
            found = self._newest(run)
        except ODD as error:
            return f"{asked}: decided on the cluster, since the run folder cannot be read from here: {error}"
        if found is not None and asked != "never":
            return f"{asked}: continues from {found[0]} (step {found[1]}) of {run.run_folder}"
        if asked.startswith("from:"):
            return f"begins from the checkpoint {asked.removeprefix('from:')}"
        return f"{asked}: no checkpoint is in {run.run_folder}, so it begins from nothing"

    def left_words(self, run: Run) -> str:
        """What a stopped run has left, in words."""
        try:
            found = self._newest(run)
        except ODD as error:
            return f"what it left in {run.run_folder} cannot be seen from here: {error}"
        return f"checkpoint {found[0]} is in {run.run_folder}" if found is not None else "no checkpoint was made"

    def _unless_odd(self, run: Run, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        try:
            return question()
        except ODD as error:
            log.debug("%s: its folder says nothing: %s", run.id, error)
            return otherwise

    def _newest(self, run: Run) -> tuple[str, int] | None:
        found = self.ask(run, list_checkpoints)
        newest = max(found, key=lambda item: (item.step, item.created), default=None)
        return (newest.name, newest.step) if newest is not None else None

    def ask(self, run: Run, question: Callable[[RunFolder], Answer], deadline_s: float | None = None) -> Answer:
        """Asks a run folder, unless its storage has hung lately.

        Args:
            run: Whose folder.
            question: What to do there.
            deadline_s: How long that may take. None: what this reader was told.

        Raises:
            StorageError: it does not answer.
        """
        place = f"{run.config['run']['s3_endpoint_url']} {run.run_folder.rpartition('/')[0]}"
        if self._clock() < self._silent.get(place, -math.inf):
            raise StorageError(f"{run.run_folder}: its storage has not answered lately; it is asked again in a minute")
        patience_s = self._deadline_s if deadline_s is None else deadline_s
        try:
            answer = call_with_timeout(lambda: question(folder_of(run)), patience_s)
        except CallTimeoutError:
            self._silent[place] = self._clock() + PAUSE_S
            text = f"{run.run_folder}: no answer in {patience_s:.0f} s; does this machine reach the storage?"
            log.warning("%s", text)
            raise StorageError(text) from None
        self._silent.pop(place, None)
        return answer


def _finite(value: Any) -> Any:
    """A loss that is no number is unequal to itself, and has no form in JSON."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
