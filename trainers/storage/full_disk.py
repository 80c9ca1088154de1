"""Names the host whose disk is full: the error of a write says neither which host that is nor what to do."""

import contextlib
import errno
import shutil
import socket
import tempfile
from collections.abc import Iterator

from trainers.errors import RayscribeError, StorageError

# Of Linux, of safetensors, and of a quota.
TEXTS = ("No space left on device", "StorageFull", "Disk quota exceeded")
NUMBERS = {errno.ENOSPC, errno.EDQUOT}
FIX = "free space on it, or have Ray keep its files on a larger disk (ray start --temp-dir, and TMPDIR)"
# torch's writer does not say why a write has failed.
WRITER_TEXT, NEARLY_FULL_BYTES = "PytorchStreamWriter failed", 2**24


@contextlib.contextmanager
def naming_full_disk() -> Iterator[None]:
    """Converts errors of a write to a full disk of this host; leaves all others as they are.

    Raises:
        StorageError: instead of the error of Python, torch or safetensors.
    """
    try:
        yield
    except RayscribeError:
        raise
    except Exception as error:
        folder = tempfile.gettempdir()
        free_bytes = shutil.disk_usage(folder).free
        if not is_full_disk(error, free_bytes):
            raise
        line = str(error).partition("\n")[0]
        detail = f"{type(error).__name__}: {line}; {folder} has {free_bytes / 2**20:.0f} MiB free"
        raise StorageError(f"{full_disk(detail)}: {FIX}") from error


def full_disk(detail: str) -> str:
    """Names the disk of this host, with what shows that it is full."""
    return f"a disk of host {socket.gethostname()} is full ({detail})"


def is_full_disk(error: BaseException, free_bytes: int) -> bool:
    """Whether the error says that a disk is full, or may come from one that is.

    Args:
        error: Of a write.
        free_bytes: What the disk of temporary files has left.
    """
    text = str(error)
    return any(item in text for item in TEXTS) or (WRITER_TEXT in text and free_bytes < NEARLY_FULL_BYTES)
