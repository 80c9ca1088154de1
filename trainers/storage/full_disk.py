"""Adds the host and a fix to the errors of writes to a full disk, which have neither."""

import contextlib
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainers.errors import FullDiskError, RayscribeError

# Messages of Linux, of safetensors, and of a quota.
TEXTS = ("No space left on device", "StorageFull", "Disk quota exceeded")
# Texts of torch, and paths, of full shared memory, which DataLoaders use; no disk is full then.
SHARED_MEMORY_TEXTS = ("/dev/shm", "memory(shm)", "</torch_")
NUMBERS = {errno.ENOSPC, errno.EDQUOT}
FIX = "free space on it, or have Ray keep its files on a larger disk (ray start --temp-dir, and TMPDIR)"
# torch's writer does not report why a write has failed.
WRITER_TEXT, NEARLY_FULL_BYTES = "PytorchStreamWriter failed", 2**24


@contextlib.contextmanager
def naming_full_disk() -> Iterator[None]:
    """Returns a context that converts errors of writes to a full disk of this host; other errors are raised unchanged.

    Raises:
        FullDiskError: A disk is full; raised from the error of Python, torch or safetensors.
    """
    try:
        yield
    except RayscribeError:
        raise
    except Exception as error:
        folder, free_bytes = _disk_of(error)
        if not is_full_disk(error, free_bytes):
            raise
        line = str(error).partition("\n")[0]
        detail = f"{type(error).__name__}: {line}"
        if free_bytes is not None:
            detail += f"; {folder} has {free_bytes / 2**20:.0f} MiB free"
        raise FullDiskError(f"{full_disk(detail)}: {FIX}") from error


def _disk_of(error: Exception) -> tuple[str, int | None]:
    """Returns the folder of a failed write, or the temporary folder if unknown, and the free bytes on its disk.

    Returns "" and None if neither is usable: a full disk may have no usable temporary folder.
    """
    # For a copy or a move, the second name is the target.
    named = (error.filename2 or error.filename) if isinstance(error, OSError) else None
    try:
        # The name may also be a file descriptor.
        folder = str(Path(named).absolute().parent) if isinstance(named, str | os.PathLike) else tempfile.gettempdir()
        return folder, shutil.disk_usage(folder).free
    except OSError:
        return "", None


def full_disk(detail: str) -> str:
    """Returns a message that a disk of this host is full, with the `detail` that shows it."""
    return f"a disk of host {socket.gethostname()} is full ({detail})"


def is_full_disk(error: BaseException, free_bytes: int | None) -> bool:
    """Returns True if a write failed because of a full disk; for torch's unclear text, `free_bytes` decides."""
    text = str(error)
    if any(item in text for item in SHARED_MEMORY_TEXTS):
        return False
    nearly_full = free_bytes is not None and free_bytes < NEARLY_FULL_BYTES
    return any(item in text for item in TEXTS) or (WRITER_TEXT in text and nearly_full)


def refuse_full(folder: Path, size_bytes: int, name: str) -> None:
    """Raises FullDiskError if the disk of a folder has fewer than `size_bytes` free."""
    free_bytes = shutil.disk_usage(folder).free
    if size_bytes > free_bytes:
        raise FullDiskError(
            f"{name}: needs {size_bytes / 2**30:.1f} GiB, and the disk of {folder} has {free_bytes / 2**30:.1f} GiB "
            "free: free space on it, or set TMPDIR to a folder on a larger one"
        )
