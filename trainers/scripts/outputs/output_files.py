"""Stores files in a program's output folder besides checkpoints: small files while it runs, all files at its end."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from trainers.errors import StorageError
from trainers.scripts.outputs.layouts import CheckpointLayout, layout_at
from trainers.storage import Storage
from trainers.storage.base import PART_SUFFIX, clean_key, in_parallel

# Folder in an attempt's folder with the files that are stored while the program runs.
OUTPUTS = "outputs"
# Maximum size of files that are stored again whenever they change.
SMALL_BYTES = 4 << 20

_Version = tuple[int, int]


class OutputFiles:
    """Stores the files of an output folder that the program has written, except those that existed before."""

    def __init__(self, folder: Path, layouts: Sequence[CheckpointLayout]):
        self._folder, self._layouts = folder, layouts
        self._before: dict[str, _Version] = {}
        self._sent: dict[str, _Version] = {}

    def begin(self, own: Collection[str]) -> None:
        """Records existing files before the program begins; `own` are those that it wrote in an earlier attempt."""
        self._before = {name: version for name, version in self._files() if name not in own}

    def send_small(self, target: Storage) -> None:
        """Stores small files that are new or have changed since they were stored.

        Raises:
            StorageError: the storage does not accept a file.
        """
        new = {name: version for name, version in self._written() if self._sent.get(name) != version}
        small = {name: version for name, version in new.items() if version[0] <= SMALL_BYTES}
        self.send(small, target)
        self._sent |= small

    def send_all(self, target: Storage) -> None:
        """Stores all files; raises as `send_small`."""
        self.send([name for name, _ in self._written()], target)

    def lacking(self, sizes: Mapping[str, int]) -> list[str]:
        """Returns the files that are missing here, or have another size in bytes."""
        return [name for name, size_bytes in sizes.items() if _size_of(self._folder / name) != size_bytes]

    def sizes(self) -> dict[str, int]:
        """Returns the size in bytes of each existing file."""
        return {name: size_bytes for name, (size_bytes, _) in self._files()}

    def fetch(self, names: Collection[str], source: Storage, localize: Callable[[Path], None]) -> None:
        """Downloads stored files, which do not count as the program's own; raises StorageError."""

        def fetch(name: str) -> None:
            source.download_file(name, self._folder / name)
            localize(self._folder / name)

        in_parallel(fetch, names)
        self._before |= {name: version for name, version in self._files() if name in names}

    def remove(self, names: Collection[str]) -> None:
        """Deletes files, and folders that become empty by it."""
        for name in names:
            (self._folder / name).unlink(missing_ok=True)
            for parent in Path(name).parents[:-1]:
                with contextlib.suppress(OSError):
                    (self._folder / parent).rmdir()

    def send(self, names: Collection[str], target: Storage) -> list[str]:
        """Stores files, except those that the program deletes meanwhile; returns the names of the stored ones.

        Raises:
            StorageError: the storage does not accept a file.
        """
        sent = []

        def send(name: str) -> None:
            try:
                target.upload_file(self._folder / name, name)
                sent.append(name)
            except StorageError:
                if (self._folder / name).exists():
                    raise

        in_parallel(send, names)
        return sorted(sent)

    def _written(self) -> Iterator[tuple[str, _Version]]:
        return ((name, version) for name, version in self._files() if self._before.get(name) != version)

    def _files(self) -> Iterator[tuple[str, _Version]]:
        """Yields name, size and modification time of each file that is not part of a checkpoint."""
        for parent, folders, names in os.walk(self._folder):
            here = Path(parent).relative_to(self._folder)
            folders[:] = [
                name for name in folders if layout_at((here / name).as_posix(), self._layouts, is_file=False) is None
            ]
            for file in names:
                name = (here / file).as_posix()
                if layout_at(name, self._layouts, is_file=True) is not None or not _can_be_stored(name):
                    continue
                try:
                    status = Path(parent, file).stat()
                except OSError:
                    continue
                if Path(parent, file).is_file():
                    yield name, (status.st_size, status.st_mtime_ns)


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _can_be_stored(name: str) -> bool:
    try:
        return clean_key(name) == name and not name.endswith(PART_SUFFIX)
    except StorageError:
        return False
