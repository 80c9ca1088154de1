"""Folders of temporary files that the processes of one user share on a node, and that are closed to all others."""

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from trainers.errors import StorageError

FOR_OTHERS = 0o077


def own_temporary_folder(purpose: str) -> Path:
    """Makes or finds this user's folder for a purpose, whose name everybody on the machine can guess.

    Raises:
        StorageError: somebody else has made it, who could put in or replace what is read there; or there is no room.
    """
    path = Path(tempfile.gettempdir()) / f"rayscribe-{purpose}-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise StorageError(f"{path} cannot be made: {error.strerror}; set TMPDIR to a folder of your own") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StorageError(
            f"{path} was made by another user (user id {status.st_uid}), who could change what is read there: have it "
            "removed, or set TMPDIR to a folder of your own"
        )
    if status.st_mode & FOR_OTHERS:
        # Some file systems have no modes.
        with contextlib.suppress(OSError):
            path.chmod(0o700)
    return path


def make_once(path: Path, make: Callable[[Path], None]) -> Path:
    """The file or folder at a path, made by `make` under the name that it is given, where there is none.

    It is there only when it is complete; others that ask for it wait. A part of it may be there that a killed process
    has left.
    """
    if not path.exists():
        with locked(path):
            if not path.exists():
                part = path.with_name(f".{path.name}.part")
                make(part)
                part.replace(path)
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other threads and processes of the node from what is at a path; the system frees the lock of a dead one."""
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
