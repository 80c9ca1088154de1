"""How a command ends: with one message for what can go wrong, and with the exit code that says it."""

import errno
import sys
from collections.abc import Callable

from trainers.distributed.console import print_line
from trainers.distributed.signals import STOP_SIGNAL
from trainers.errors import Interruption, RayscribeError, StoppedError, StorageError

# What a disk, or the rights on it, refuse: packages, the ledger, records of clusters, logs, temporary files and the
# output of a command are all written on this machine's disks.
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
# Of Python's tempfile, where every folder that it knows is full or read-only.
NO_TEMPORARY_FOLDER = "No usable temporary directory found"


def exit_code_of(work: Callable[[], int]) -> int:
    """Does the work of a command; prints one message for what can go wrong, and returns the exit code."""
    STOP_SIGNAL.reset()
    with STOP_SIGNAL.on_signals():
        try:
            return work()
        except StoppedError as stopped:
            print_line(str(stopped), sys.stderr)
            return STOP_SIGNAL.exit_code
        except KeyboardInterrupt as stopped:
            left = (stopped if isinstance(stopped, Interruption) else Interruption()).left
            print_line(f"stopped; {left}", sys.stderr)
            return STOP_SIGNAL.exit_code
        except RayscribeError as error:
            print_line(f"error: {error}", sys.stderr)
            return error.exit_code
        except OSError as error:
            if (text := refused_by_disk(error)) is None:
                raise
            print_line(f"error: {text}", sys.stderr)
            return StorageError.exit_code


def refused_by_disk(error: OSError) -> str | None:
    """What a person can do where a disk is full, or may not be written; None: it is another error."""
    what = error.filename or "a file of this machine, or the output of this command"
    if error.errno in FULL:
        return f"{what} cannot be written: {error.strerror}: free some, or choose another disk (RAYSCRIBE_HOME, TMPDIR)"
    if error.errno in FORBIDDEN:
        return f"{what} cannot be used: {error.strerror}: change its rights, or choose another folder (RAYSCRIBE_HOME)"
    if (error.strerror or "").startswith(NO_TEMPORARY_FOLDER):
        return f"{error.strerror}: each is full or read-only: free some, or set TMPDIR to a folder on another disk"
    return None
