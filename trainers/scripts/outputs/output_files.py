"""What is in a program's output folder next to its checkpoints: logs and results while it runs, all else at its end."""

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from trainers.errors import StorageError
from trainers.scripts.outputs.layouts import CheckpointLayout, find, is_below
from trainers.storage import Storage
from trainers.storage.base import PART_SUFFIX, clean_key, in_parallel

# Of a file that is sent again each time that it has changed.
SMALL_BYTES = 4 << 20

_Version = tuple[int, int]


class OutputFiles:
    """Sends the files of an output folder that the program has written; what lay there before is none of them."""

    def __init__(self, folder: Path, layouts: Sequence[CheckpointLayout]):
        self._folder, self._layouts = folder, layouts
        self._before: dict[str, _Version] = {}
        self._sent: dict[str, _Version] = {}

    def begin(self) -> None:
        """The program has not begun."""
        self._before = dict(self._files())

    def send_small(self, target: Storage) -> None:
        """Stores small files that are new or have changed since they were sent.

        Raises:
            StorageError: the storage does not accept one.
        """
        new = {name: version for name, version in self._written() if self._sent.get(name) != version}
        small = {name: version for name, version in new.items() if version[0] <= SMALL_BYTES}
        self._send(small, target)
        self._sent |= small

    def send_all(self, target: Storage) -> list[str]:
        """Stores all files, and gives their names; raises as `send_small`."""
        names = sorted(name for name, _ in self._written())
        self._send(names, target)
        return names

    def _send(self, names: Collection[str], target: Storage) -> None:
        def send(name: str) -> None:
            try:
                target.upload_file(self._folder / name, name)
            except StorageError:
                # The program may have deleted it in the meantime.
                if (self._folder / name).exists():
                    raise

        in_parallel(send, names)

    def _written(self) -> Iterator[tuple[str, _Version]]:
        return ((name, version) for name, version in self._files() if self._before.get(name) != version)

    def _files(self) -> Iterator[tuple[str, _Version]]:
        """Name, size and time of change of each file that is not of a checkpoint."""
        checkpoints = find(self._folder, self._layouts)
        for parent, folders, names in os.walk(self._folder):
            here = Path(parent).relative_to(self._folder)
            folders[:] = [name for name in folders if not is_below((here / name).as_posix(), checkpoints)]
            for file in names:
                name = (here / file).as_posix()
                if is_below(name, checkpoints) or not _can_be_stored(name):
                    continue
                try:
                    status = Path(parent, file).stat()
                except OSError:
                    continue
                if Path(parent, file).is_file():
                    yield name, (status.st_size, status.st_mtime_ns)


def _can_be_stored(name: str) -> bool:
    try:
        return clean_key(name) == name and not name.endswith(PART_SUFFIX)
    except StorageError:
        return False
