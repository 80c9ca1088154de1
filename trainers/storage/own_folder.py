"""Makes temporary folders that the processes of one user on a node share, closed to other users."""

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
    """Returns this user's folder, made if needed; raises StorageError if another user, who could change it, made it."""
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
        # Some file systems have no permission bits.
        with contextlib.suppress(OSError):
            path.chmod(0o700)
    return path


def make_once(path: Path, make: Callable[[Path], None]) -> Path:
    """Returns the path of a file or folder; if it does not exist, calls `make` with a temporary name, and renames it.

    The path exists only when complete; other processes wait for it. A killed process may leave a partial file under the
    temporary name.
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
    """Locks a path for other threads and processes of the node; the system releases the lock of a dead process."""
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
