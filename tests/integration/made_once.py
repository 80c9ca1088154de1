"""What is expensive to make is made once for all processes of a test session."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(name: str, make: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the first process that asks for it has filled; the others wait until it is complete.

    Args:
        name: Of the folder, one for all tests.
        make: Fills the folder that it is given, which exists.
        tmp_path_factory: Of this process.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, complete = root / name, root / f"{name}.complete"
    with FileLock(root / f"{name}.lock"):
        if not complete.exists():
            folder.mkdir()
            make(folder)
            complete.touch()
    return folder
