"""Reads run folders. Unreadable content counts as missing, unless that would change what is known about a run."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from jobs.clusters.timeouts import CallTimeoutError, call_with_timeout
from jobs.model import Progress, Run
from trainers.config.storage_location import StorageOptions
from trainers.errors import RayscribeError, StorageError
from trainers.run_folder.attempt_status import driver_log_key, read_status
from trainers.run_folder.checkpoints import list_checkpoints
from trainers.run_folder.journal import Checkpoint, Journal
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage
from trainers.storage.json_files import finite

Result = TypeVar("Result")

log = logging.getLogger(__name__)

# Errors of a folder's content, since others may write to it.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OSError)

# Timeout for one storage, so that the controller can continue with other runs if it hangs.
TIMEOUT_S = 10.0
PAUSE_S = 60.0
# A round of the controller spends about this time on one storage; its remaining runs wait for a later round. Seconds.
ROUND_BUDGET_S = 5.0
# Lowest rate at which a large piece of a log is written, from which its timeout is computed.
SLOWEST_BYTES_PER_S = 1e6
# Limit of a journal; an ordinary run with checkpoints for a year needs a tenth. In memory, it is several times larger.
MAX_JOURNAL_BYTES = 64 << 20
# Size of files in which a driver's log is archived; if the log grows, only the last file is written again.
PIECE_BYTES = 4_000_000
# Size of a log's archived start; the last lines of a longer log are archived too.
MAX_DRIVER_BYTES = 8 * PIECE_BYTES


def progress_of(status: Mapping[str, Any] | None) -> Progress | None:
    """Parses an attempt's status file; returns None without one. Raises ValueError if it is not valid."""
    # A later version's training may write more fields.
    known = {name: finite(value) for name, value in (status or {}).items() if name in Progress.model_fields}
    return Progress.model_validate(known) if status else None


def folder_of(run: Run) -> RunFolder:
    """Opens the run folder with the run's storage options; since others may write to it, links out are not followed."""
    return RunFolder(open_storage(run.run_folder, StorageOptions.of(run.config["run"]), confined=True))


def _location_of(run: Run) -> str:
    """Returns the storage and parent folder of a run; if it is slow or missing, that affects all runs in it."""
    return f"{StorageOptions.of(run.config['run'])} {run.run_folder.rpartition('/')[0]}"


class RunFolders:
    """Reads run folders; after a storage has hung, skips its folders for PAUSE_S, so that others need not wait."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S, clock: Callable[[], float] = time.monotonic):
        self._timeout_s, self._clock = timeout_s, clock
        self._unresponsive: dict[str, float] = {}
        self._waited_s: dict[str, float] = {}

    def begin_round(self) -> None:
        self._waited_s.clear()

    def has_time(self, run: Run) -> bool:
        """Returns True if the run's storage has taken less than its share of this round."""
        return self._waited_s.get(_location_of(run), 0.0) < ROUND_BUDGET_S

    def progress(self, run: Run, attempt: int) -> Progress | None:
        """Returns an attempt's latest status; None if it has written none. Raises like `read`."""
        return self.read(run, lambda folder: progress_of(read_status(folder, attempt)))

    def last_checkpoint(self, run: Run) -> tuple[str, int] | None:
        """Returns name and step of the newest complete checkpoint; None if there is none. Raises like `read`."""
        newest = max(self._checkpoints(run), key=lambda item: (item.step, item.created), default=None)
        return (newest.name, newest.step) if newest is not None else None

    def checkpoints(self, run: Run) -> list[str]:
        """Returns the names of all complete checkpoints; empty if the folder cannot be read."""
        with suppress(RayscribeError):
            return [item.name for item in self._checkpoints(run)]
        return []

    def last_attempt(self, run: Run) -> int:
        """Returns the number of the newest attempt in the folder, of any ledger; 0 if it has none or is unreadable."""
        with suppress(RayscribeError):
            return self.read(run, lambda folder: Journal(folder, most_bytes=MAX_JOURNAL_BYTES).read().attempt)
        return 0

    def write_driver_log(self, run: Run, attempt: int, piece: int, text: bytes) -> None:
        """Writes a piece of the driver's output to the run folder; raises like `read`."""
        timeout_s = self._timeout_s + len(text) / SLOWEST_BYTES_PER_S
        self.read(run, lambda folder: folder.storage.write_bytes(driver_log_key(attempt, piece), text), timeout_s)

    def resume_text(self, run: Run) -> str:
        """Returns a text on the checkpoint or weights from which the next attempt starts."""
        requested = str(run.config["run"]["resume"])
        try:
            found = self.last_checkpoint(run)
        except RayscribeError as error:
            return f"{requested}: decided on the cluster, since the service cannot read the run folder: {error}"
        if found is not None and requested != "never":
            return f"{requested}: continues from {found[0]} (step {found[1]}) of {run.run_folder}"
        if requested.startswith("from:"):
            return f"starts from {run.beginning}"
        return f"{requested}: no checkpoint is in {run.run_folder}, so it starts from {run.beginning}"

    def left_text(self, run: Run) -> str:
        """Returns a text on the last checkpoint of a stopped run."""
        try:
            found = self.last_checkpoint(run)
        except RayscribeError as error:
            return f"the service cannot read {run.run_folder}, so its last checkpoint is not known: {error}"
        return f"checkpoint {found[0]} is in {run.run_folder}" if found is not None else "no checkpoint was made"

    def _checkpoints(self, run: Run) -> list[Checkpoint]:
        return self.read(run, lambda folder: list_checkpoints(folder, most_bytes=MAX_JOURNAL_BYTES))

    def read(self, run: Run, call: Callable[[RunFolder], Result], timeout_s: float | None = None) -> Result:
        """Calls a function with a run folder, unless its storage has hung recently.

        Raises:
            StorageError: the storage does not respond, or the content cannot be read.
            RayscribeError: any such error of the function.
        """
        location, began_s = _location_of(run), self._clock()
        if began_s < self._unresponsive.get(location, -math.inf):
            raise StorageError(f"{run.run_folder}: its storage did not respond recently; retrying in a minute")
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            result = call_with_timeout(lambda: call(folder_of(run)), timeout_s)
        except CallTimeoutError:
            self._unresponsive[location] = self._clock() + PAUSE_S
            text = f"{run.run_folder}: no response in {timeout_s:.0f} s; can the service connect to the storage?"
            log.warning("%s", text)
            raise StorageError(text) from None
        except UNREADABLE as error:
            raise StorageError(f"{run.run_folder} cannot be read: {error}") from None
        finally:
            self._waited_s[location] = self._waited_s.get(location, 0.0) + self._clock() - began_s
        self._unresponsive.pop(location, None)
        return result
