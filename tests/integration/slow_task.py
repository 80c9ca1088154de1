"""task.py with a storage that takes its time, so that a test can stop the process between two files."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trainers.main import main as task
from trainers.storage.local_folder import LocalStorage


def slow_down(delay_s: float, part: str) -> None:
    """Has every write to a path that contains `part` wait a while before it."""
    upload_file: Callable[[LocalStorage, Path, str], None] = LocalStorage.upload_file
    write_bytes: Callable[[LocalStorage, str, bytes], None] = LocalStorage.write_bytes

    def wait(storage: LocalStorage, key: str) -> None:
        if part in storage.url(key):
            time.sleep(delay_s)

    def upload_slowly(self: LocalStorage, local: Path, key: str) -> None:
        wait(self, key)
        upload_file(self, local, key)

    def write_slowly(self: LocalStorage, key: str, data: bytes) -> None:
        wait(self, key)
        write_bytes(self, key, data)

    LocalStorage.upload_file = upload_slowly  # type: ignore[method-assign]
    LocalStorage.write_bytes = write_slowly  # type: ignore[method-assign]


def main(arguments: Sequence[str]) -> int:
    """Runs task.py; the arguments are the delay in seconds, a part of a path, and those of task.py."""
    delay_s, part, *rest = arguments
    slow_down(float(delay_s), part)
    return task(rest)
