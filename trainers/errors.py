"""The errors of the cluster's side, as one tree.

Each is made from one string with the thing, the value and the fix, so that pickling between Ray processes keeps it.
"""

import errno

# Errors of a full disk, and of missing permissions on it. Packages, the ledger, records of clusters, logs, temporary
# files and the output of a command are all written to this machine's disks.
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
# Message of Python's tempfile if all of its folders are full or read-only.
NO_TEMPORARY_FOLDER = "No usable temporary directory found"


class RayscribeError(Exception):
    """Base class of all errors that Rayscribe raises itself.

    Attributes:
        final: True if a retry would fail in the same way, so that workers are not restarted.
    """

    exit_code = 1
    final = False

    def __init_subclass__(cls, *, exit_code: int | None = None, final: bool | None = None) -> None:
        cls.exit_code = cls.exit_code if exit_code is None else exit_code
        cls.final = cls.final if final is None else final


class ConfigError(RayscribeError, exit_code=2, final=True):
    """A value in the config, or a combination of values, is not valid."""


class DataError(RayscribeError, exit_code=3, final=True):
    """A manifest, a data set or a recording cannot be used."""


class NotHereError(DataError):
    """A data file cannot be read on this machine, but other machines may have it."""


class AudioError(DataError):
    """One recording cannot be decoded; the message is its reason in the quarantine file."""


class StorageError(RayscribeError, exit_code=4):
    """A folder or bucket cannot be read or written."""


class NoAccessError(StorageError, final=True):
    """A bucket does not exist, or access to it is denied; waiting does not change that."""


class NoBucketError(NoAccessError):
    """A bucket does not exist, so no machine can read it."""


class FullDiskError(StorageError, final=True):
    """A disk is full; an immediate retry would fail, too."""


class ResumeError(RayscribeError, exit_code=5, final=True):
    """A run cannot be continued: another experiment has its name, or a checkpoint is damaged."""


class DamagedError(ResumeError):
    """A checkpoint is damaged: its manifest or a file is missing, or a file differs from its SHA-256."""


class ResourceError(RayscribeError, exit_code=6, final=True):
    """The cluster, grown to its limit, does not have the resources that the config requests."""


class ScoringError(RayscribeError, exit_code=7, final=True):
    """The scored ids are not exactly those of the data set, or a score is not a finite number."""


class QuarantinedError(RayscribeError, exit_code=15, final=True):
    """Some recordings could not be transcribed; all others were, and their transcripts are written."""


class ExportError(RayscribeError, exit_code=16, final=True):
    """Some formats could not be exported, or score differently from the run; all others were kept."""


class RefusedError(RayscribeError, exit_code=17, final=True):
    """Every checkpoint, or the final model, was refused because of its scores."""


class DivergedError(RayscribeError, exit_code=13, final=True):
    """Training diverged: the loss or a weight is no longer a finite number; earlier checkpoints are kept."""


class ProgramError(RayscribeError, final=True):
    """A worker failed with an error, such as a TypeError, that a retry would raise again."""


class PackageError(ProgramError, exit_code=14):
    """A worker cannot import a module: its package is not installed there, or has another version."""


class FencedError(RayscribeError, exit_code=10, final=True):
    """A newer attempt, or another worker group, has taken over the run; what the old one writes is ignored."""


class LostWorkerError(RayscribeError, exit_code=8):
    """The process of a training worker died, more often than run.max_failures allows."""


class FollowingError(LostWorkerError):
    """A rank's program failed, or was ended, after the program of another rank; that rank's error has the cause."""


class ScriptError(RayscribeError):
    """An unmodified program has failed; the command ends as the program did.

    Attributes:
        ended_s: When the program ended, in seconds since the epoch by its node's clock.
    """

    ended_s = 0.0

    @classmethod
    def of(cls, message: str, exit_code: int, ended_s: float, *, final: bool) -> "ScriptError":
        """Returns the error of a program with its exit code."""
        error = cls(message)
        # Instance attributes are pickled with the error.
        error.exit_code, error.ended_s, error.final = exit_code, ended_s, final
        return error


class MemoryExhaustedError(RayscribeError, exit_code=9):
    """A worker was killed by Ray's memory monitor, or ran out of CPU or GPU memory."""


class LostNodeError(RayscribeError, exit_code=11):
    """The node of a training worker died, or was preempted."""


class RegroupError(LostNodeError):
    """The workers ended with a checkpoint to make way for a new group; the message has the reason and checkpoint."""


class StoppedError(RayscribeError, exit_code=143, final=True):
    """A stop was requested, and the last checkpoint is stored; the message has its location."""


class Interruption(KeyboardInterrupt):
    """A signal requested a stop while there was nothing to wait for.

    Attributes:
        left: How the command can be continued, for the person who requested the stop.
    """

    left = "the same command continues from what is there"

    def __str__(self) -> str:
        return f"stopped; {self.left}"


def refused_by_disk(error: OSError) -> str | None:
    """Returns a message with the fix for a full disk or a missing permission; None for any other error."""
    what = error.filename or "a file of this machine, or the output of this command"
    if error.errno in FULL:
        return f"{what} cannot be written: {error.strerror}: free space, or use another disk (RAYSCRIBE_HOME, TMPDIR)"
    if error.errno in FORBIDDEN:
        return f"{what} cannot be used: {error.strerror}: fix its permissions, or use another folder (RAYSCRIBE_HOME)"
    if (error.strerror or "").startswith(NO_TEMPORARY_FOLDER):
        return f"{error.strerror}: each is full or read-only: free space, or set TMPDIR to a folder on another disk"
    return None
