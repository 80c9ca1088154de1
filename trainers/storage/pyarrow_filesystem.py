"""A bucket as a pyarrow filesystem, to which Ray writes its own small files.

pyarrow's own filesystems of buckets support neither AWS's profiles nor the retries and errors of `Storage`, and pickle
credentials.
"""

import io
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import fs

from trainers.storage.base import Entry, Storage


def filesystem_of(storage: Storage, root: str) -> fs.FileSystem:
    """Returns the filesystem in which `root/key` is the file `key` of a storage; it can be pickled like the storage."""
    return fs.PyFileSystem(_Handler(storage, root))


class _Upload(io.BytesIO):
    """A file that is uploaded when it is closed."""

    def __init__(self, storage: Storage, key: str):
        super().__init__()
        self._storage, self._key = storage, key

    def close(self) -> None:
        if not self.closed:
            self._storage.write_bytes(self._key, self.getvalue())
        super().close()


@dataclass(frozen=True)
class _Handler(fs.FileSystemHandler):  # type: ignore[misc]
    """Implements pyarrow's calls; folders exist if they contain a file. A file is read or written in one call."""

    storage: Storage
    root: str

    def get_type_name(self) -> str:
        return "rayscribe"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        folder = self._key(selector.base_dir)
        files = self.storage.list_files(folder)
        if not files and not selector.allow_not_found:
            raise FileNotFoundError(self.storage.url(folder))
        start = len(folder) + 1 if folder else 0
        parents = {
            entry.key[:end]
            for entry in files
            for end in range(start, len(entry.key))
            if entry.key[end] == "/" and (selector.recursive or "/" not in entry.key[start:end])
        }
        shown = [entry for entry in files if selector.recursive or "/" not in entry.key[start:]]
        folders = [fs.FileInfo(f"{self.root}/{parent}", fs.FileType.Directory) for parent in sorted(parents)]
        return [*folders, *(self._file(entry) for entry in shown)]

    def create_dir(self, path: str, recursive: bool) -> None:
        """Does nothing: a folder exists with its first file."""

    def delete_dir(self, path: str) -> None:
        self.storage.delete_tree(self._key(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.storage.delete_tree(self._key(path))

    def delete_file(self, path: str) -> None:
        self._require(path)
        self.storage.delete(self._key(path))

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        self._require(path)
        return pa.BufferReader(self.storage.read_bytes(self._key(path)))

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return pa.PythonFile(_Upload(self.storage, self._key(path)), mode="w")

    def _refuse(self, *arguments: Any) -> Any:
        raise NotImplementedError("Ray does not need this operation")

    move = copy_file = open_append_stream = delete_root_dir_contents = _refuse

    def _key(self, path: str) -> str:
        return path.removeprefix(self.root).strip("/")

    def _require(self, path: str) -> None:
        if not self.storage.exists(self._key(path)):
            raise FileNotFoundError(self.storage.url(self._key(path)))

    def _info(self, path: str) -> fs.FileInfo:
        key = self._key(path)
        entry = self.storage.entry(key) if key else None
        if entry is not None:
            return self._file(entry)
        is_folder = not key or bool(self.storage.list_files(key))
        return fs.FileInfo(path, fs.FileType.Directory if is_folder else fs.FileType.NotFound)

    def _file(self, entry: Entry) -> fs.FileInfo:
        path = f"{self.root}/{entry.key}"
        return fs.FileInfo(path, fs.FileType.File, size=entry.size_bytes, mtime=entry.modified_s)
