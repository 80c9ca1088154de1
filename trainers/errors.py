"""The errors of the cluster's side, as one tree.

RayscribeError                 raised on purpose; the message names the thing, the value and the fix
├── ConfigError                a value in the YAML, or a pair of values, cannot work
├── DataError                  a manifest or a recording cannot be used
│   ├── NotHereError           a file of the data is missing on this machine; others may have it
│   └── AudioError             one recording cannot be decoded; the text is its quarantine reason
├── StorageError               a folder or bucket cannot be read or written
│   ├── NoAccessError          there is no such bucket, or no permission for it
│   │   └── NoBucketError      there is no such bucket
│   └── FullDiskError          a disk has no room left
├── ResumeError                the run folder is another experiment's, or a checkpoint cannot be used
│   └── DamagedError           a checkpoint is incomplete, and will stay so
├── ResourceError              the cluster can never have what the config requests
├── QuarantinedError           recordings could not be transcribed; all others were
├── ExportError                a format could not be made of a model, or has other scores; the others were kept
├── ScoringError               the scored ids are not the requested ones, or a score is not a finite number
├── DivergedError              the loss or a weight is no longer a finite number; earlier checkpoints are stored
├── ProgramError               the code, a library or a value of the config is wrong in a way that no check finds
│   └── PackageError           a package is not installed, or is of another version than the code expects
├── ScriptError                an unmodified program has failed by itself
├── FencedError                a newer attempt has taken the run over; this one must not write
├── LostWorkerError            the process of a training worker died
│   └── FollowingError         a program ended since another rank's did
├── LostNodeError              the node of a training worker died, or was taken away
│   └── RegroupError           the workers left for a new worker group, and the last checkpoint is stored
├── MemoryExhaustedError       a worker asked for more memory than its node or its GPU has
└── StoppedError               a stop was requested, and the last checkpoint is stored
Interruption                   a stop was requested, and there is nothing to wait for

Each takes one string, so that pickling between Ray processes does not change it.
"""

import errno

# Errors of a full disk, or of missing rights on it: packages, the ledger, records of clusters, logs, temporary files
# and the output of a command are all written to this machine's disks.
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
# Message of Python's tempfile if all of its folders are full or read-only.
NO_TEMPORARY_FOLDER = "No usable temporary directory found"


class RayscribeError(Exception):
    """Base class of all errors that Rayscribe raises itself.

    Attributes:
        exit_code: Exit code of a command that ends with this error.
        final: True if a retry would fail in the same way, so that workers are not restarted.
    """

    exit_code = 1
    final = False


class ConfigError(RayscribeError):
    """A value in the config, or a combination of values, is not valid."""

    exit_code = 2
    final = True


class DataError(RayscribeError):
    """A manifest, a data set or a recording cannot be used."""

    exit_code = 3
    final = True


class NotHereError(DataError):
    """A file of the data cannot be read on this machine."""


class AudioError(DataError):
    """One recording cannot be decoded; the message is its reason in the quarantine file."""


class StorageError(RayscribeError):
    """A folder or bucket cannot be read or written."""

    exit_code = 4


class NoAccessError(StorageError):
    """A bucket does not exist, or access to it is denied; waiting does not change that."""

    final = True


class NoBucketError(NoAccessError):
    """A bucket does not exist, for anyone."""


class FullDiskError(StorageError):
    """A disk has no room left; an immediate retry would fail, too."""

    final = True


class ResumeError(RayscribeError):
    """A run cannot be continued: another experiment has its name, or a checkpoint is damaged."""

    exit_code = 5
    final = True


class DamagedError(ResumeError):
    """A checkpoint is damaged: its manifest or a file is missing, or a file differs from its SHA-256."""


class ResourceError(RayscribeError):
    """The cluster, grown to its limit, does not have the resources that the config requests."""

    exit_code = 6
    final = True


class ScoringError(RayscribeError):
    """The scored ids are not exactly those of the data set, or a score is not a finite number."""

    exit_code = 7
    final = True


class QuarantinedError(RayscribeError):
    """Some recordings could not be transcribed; all others were, and their transcripts are written."""

    exit_code = 15
    final = True


class ExportError(RayscribeError):
    """Some formats could not be made of a run's model, or have scores other than the run's; all others were kept."""

    exit_code = 16
    final = True


class DivergedError(RayscribeError):
    """Training diverged: the loss or a weight is no longer a finite number; the checkpoints before are stored."""

    exit_code = 13
    final = True


class ProgramError(RayscribeError):
    """A worker failed with an error, such as a TypeError, that a retry would raise again."""

    final = True


class PackageError(ProgramError):
    """A worker cannot import something: a package is not installed there, or is of another version."""

    exit_code = 14


class FencedError(RayscribeError):
    """A newer attempt, or another worker group, has taken over the run; what this one writes is ignored."""

    exit_code = 10
    final = True


class LostWorkerError(RayscribeError):
    """The process of a training worker died, more often than run.max_failures allows."""

    exit_code = 8


class FollowingError(LostWorkerError):
    """A rank's program failed, or was ended, after that of another rank, whose error has the cause."""


class ScriptError(RayscribeError):
    """An unmodified program has failed; the command ends as the program did.

    Attributes:
        ended_s: Time of its end. Seconds since the epoch, by its node's clock.
    """

    ended_s = 0.0

    @classmethod
    def of(cls, message: str, exit_code: int, ended_s: float, *, final: bool) -> "ScriptError":
        """Returns the error of a program with its exit code."""
        error = cls(message)
        # Instance attributes are pickled with the error.
        error.exit_code, error.ended_s, error.final = exit_code, ended_s, final
        return error


class MemoryExhaustedError(RayscribeError):
    """A worker was killed by Ray's memory monitor, or ran out of CPU or GPU memory."""

    exit_code = 9


class LostNodeError(RayscribeError):
    """The node of a training worker died, or was preempted."""

    exit_code = 11


class RegroupError(LostNodeError):
    """The workers ended intentionally, with a checkpoint, for a new group; the message has reason and checkpoint."""


class StoppedError(RayscribeError):
    """A stop was requested, and the last checkpoint is stored; the message has its location."""

    exit_code = 143
    final = True


class Interruption(KeyboardInterrupt):
    """A stop was requested, by a signal, while there was nothing to wait for.

    Attributes:
        left: What the run has, for the person who requested the stop.
    """

    def __init__(self) -> None:
        super().__init__("stopped")
        self.left = "the same command continues from what is there"


def refused_by_disk(error: OSError) -> str | None:
    """Returns what to do about a full disk, or one without permission to write; None for any other error."""
    what = error.filename or "a file of this machine, or the output of this command"
    if error.errno in FULL:
        return f"{what} cannot be written: {error.strerror}: free some, or choose another disk (RAYSCRIBE_HOME, TMPDIR)"
    if error.errno in FORBIDDEN:
        return f"{what} cannot be used: {error.strerror}: change its rights, or choose another folder (RAYSCRIBE_HOME)"
    if (error.strerror or "").startswith(NO_TEMPORARY_FOLDER):
        return f"{error.strerror}: each is full or read-only: free some, or set TMPDIR to a folder on another disk"
    return None
