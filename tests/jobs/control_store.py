"""A process that looks like the control store of a Ray, and so like a Ray of this machine that lives."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from trainers.distributed.local_ray import GCS_PROCESS, MARK


@contextlib.contextmanager
def living_ray(folder: Path) -> Iterator[None]:
    """For the duration of the block, the Ray with this temporary folder lives."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / GCS_PROCESS
    shutil.copy(shutil.which("sleep") or "", program)
    process = subprocess.Popen([program, "600"], env={**os.environ, MARK: str(folder)})
    try:
        yield
    finally:
        process.kill()
        process.wait()
