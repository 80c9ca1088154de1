"""Where DeepSpeed's operators are compiled: a folder of this node, by a lock that a killed process does not leave.

torch's own lock is a file that exists, for which each later process waits, however its holder ended; and home folders,
where it puts what it compiles, are shared by nodes of different CPUs.
"""

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from trainers.storage.own_folder import own_temporary_folder

FOLDER_VARIABLE = "TORCH_EXTENSIONS_DIR"


class CompileLock:
    """Takes the place of `torch.utils.file_baton.FileBaton`: whoever gets it compiles, or finds everything compiled."""

    def __init__(self, path: str):
        """Opens the lock file, which stays."""
        self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR)

    def try_acquire(self) -> bool:
        """Waits for the lock, so that nobody takes what a killed process was compiling for complete."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        """Lets the next process have it."""
        os.close(self._descriptor)


@contextmanager
def operators_compiled_here() -> Iterator[None]:
    """Within it, this process compiles and finds operators in a folder of its own node and versions.

    It is in TORCH_EXTENSIONS_DIR where that is set, else in a temporary folder.
    """
    # It looks for compilers, which only DeepSpeed needs.
    from torch.utils import cpp_extension  # noqa: PLC0415

    compiler: Any = cpp_extension
    before, torchs_own = os.environ.get(FOLDER_VARIABLE), compiler.FileBaton
    root = Path(before) if before else own_temporary_folder("operators")
    os.environ[FOLDER_VARIABLE] = str(root / f"python-{platform.python_version()}-torch-{torch.__version__}")
    compiler.FileBaton = CompileLock
    try:
        yield
    finally:
        compiler.FileBaton = torchs_own
        os.environ.pop(FOLDER_VARIABLE)
        if before is not None:
            os.environ[FOLDER_VARIABLE] = before
