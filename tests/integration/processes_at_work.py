"""Processes of a Ray that are at a task, which a file named after each says while it is."""

from contextlib import suppress
from pathlib import Path

import psutil

AT_WORK = "{}.at-work"


def at_work(notes: Path) -> list[psutil.Process]:
    """The processes that are at a task; of a killed one the file stays."""
    found = []
    for path in notes.glob(AT_WORK.format("*")):
        with suppress(psutil.Error, FileNotFoundError):
            process = psutil.Process(int(path.stem))
            if process.create_time() <= path.stat().st_mtime:
                found.append(process)
    return found
