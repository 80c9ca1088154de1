"""Reads files by path on this node, in buckets and on web servers in the same way."""

import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainers.config.storage_location import StorageOptions, is_hub_url, is_remote, is_url, is_web_url
from trainers.errors import NoAccessError, StorageError
from trainers.storage import Entry, Storage, open_storage
from trainers.storage.web_files import describe_web_file, read_web_file, read_web_range

# Result size of `read_start`: enough for the counts in an ARPA file, and for the header of a binary.
START_BYTES = 64 * 1024
_UNPACKED = re.compile(r"/.*(/working_dir_files/_ray_pkg_[^/]+)(?=/)")


def on_this_node(path: str) -> str:
    """Returns a path; for one in a job's package, which each node unpacks elsewhere, its path on this node."""
    found = _UNPACKED.match(path)
    if found is None:
        return path
    # Ray adds the folder of its job's package to the variable in each process.
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return next((folder for folder in folders if folder.endswith(found[1])), found[0]) + path[found.end() :]


def read_location(location: str, storage_options: StorageOptions) -> bytes:
    """Returns the content of a file at an absolute path or URL.

    Raises:
        FileNotFoundError: The file or object does not exist.
        NoAccessError: The bucket does not exist, or access is denied.
        StorageError: The bucket or the server is not available.
    """
    if is_web_url(location):
        return read_web_file(location)
    if not is_url(location):
        return _read_opened(location, 0, -1)
    storage, name = _opened(location, storage_options)
    return _existing(storage, name, lambda: storage.read_bytes(name), storage_options)


def read_range(location: str, start: int, length: int, storage_options: StorageOptions) -> bytes:
    """Returns `length` bytes of a file from `start` on, or fewer at its end; raises as `read_location`."""
    if is_web_url(location):
        return read_web_range(location, start, length)
    if not is_url(location):
        return _read_opened(location, start, length)
    storage, name = _opened(location, storage_options)
    return _existing(storage, name, lambda: storage.read_part(name, start, length), storage_options) if length else b""


def _read_opened(location: str, start: int, length: int) -> bytes:
    """Reads bytes of a file on this node or on the Hub; all from `start` on if the length is -1."""
    with open_url(location) if is_hub_url(location) else Path(on_this_node(location)).open("rb", buffering=0) as file:
        if start:
            file.seek(start)
        part: bytes = file.read(length)
        return part


def describe(location: str, storage_options: StorageOptions) -> Entry:
    """Returns a file's size, and an ETag or times that change with its content; raises as `read_location`."""
    if is_web_url(location):
        return describe_web_file(location)
    if is_hub_url(location):
        with open_url(location) as file:
            # Files on the Hub are stored by the hash of their content.
            return Entry(location, file.size, 0.0, str(file.details.get("blob_id", "")))
    if not is_url(location):
        status = Path(on_this_node(location)).stat()
        # A copy may keep its modification time; the system sets the change time.
        return Entry(location, status.st_size, status.st_mtime, f"{status.st_mtime_ns} {status.st_ctime_ns}")
    storage, name = _opened(location, storage_options)
    entry = storage.entry(name)
    if entry is None:
        _require_bucket(location, storage_options)
        raise FileNotFoundError(location)
    return entry


def is_file(location: str, storage_options: StorageOptions) -> bool:
    """Returns True if there is a file at a location; raises StorageError if that cannot be determined."""
    if not is_remote(location):
        return Path(on_this_node(location)).is_file()
    try:
        describe(location, storage_options)
    except FileNotFoundError:
        return False
    return True


def open_url(url: str) -> Any:
    """Opens a path, or a URL that fsspec supports, for reading bytes. Raises OSError if it cannot be read."""
    # Imported here because it is installed with `datasets`, which a client alone does not have.
    import fsspec  # noqa: PLC0415

    return fsspec.open(on_this_node(url), "rb").open()


def hub_files(folder: str) -> list[str]:
    """Returns all files below a folder of a repository on the Hub, as relative paths, sorted; empty if it is missing.

    Raises OSError if the repository does not exist, or the Hub is not available.
    """
    import fsspec  # noqa: PLC0415

    file_system, path = fsspec.url_to_fs(folder)
    root = f"{file_system.resolve_path(path).unresolve()}/"
    return [name.removeprefix(root) for name in file_system.find(path) if name.startswith(root)]


def reason_of(error: OSError) -> str:
    """Returns why a file could not be read, for a message that names the file."""
    return "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror or error)


def read_start(location: str, storage_options: StorageOptions) -> bytes:
    """Returns the first bytes of a file; raises as `read_location`."""
    return read_range(location, 0, START_BYTES, storage_options)


def _opened(url: str, storage_options: StorageOptions) -> tuple[Storage, str]:
    folder, _, name = url.rpartition("/")
    if not name or folder.endswith(":/"):  # A folder or a bucket.
        raise FileNotFoundError(url)
    return open_storage(folder, storage_options), name


def _existing(storage: Storage, name: str, read: Callable[[], bytes], storage_options: StorageOptions) -> bytes:
    try:
        return read()
    except NoAccessError:
        raise
    except StorageError:
        if not storage.exists(name):
            _require_bucket(storage.url(name), storage_options)
            raise FileNotFoundError(storage.url(name)) from None
        raise


def _require_bucket(url: str, storage_options: StorageOptions) -> None:
    """Raises NoBucketError if the bucket does not exist, which an error about one object may not tell."""
    scheme, _, path = url.partition("://")
    _list_beginning(f"{scheme}://{path.partition('/')[0]}", storage_options)


@lru_cache(64)
def _list_beginning(bucket: str, storage_options: StorageOptions) -> None:
    """Lists very few names of a bucket, once per bucket; does not raise if listing is denied, as the bucket exists."""
    open_storage(bucket, storage_options).list_some({"!"})


def prefix_of(path: str, prefixes: Mapping[str, str]) -> str | None:
    """Returns the longest prefix that matches a path, which is replaced once; None if none matches."""
    return max(filter(path.startswith, prefixes), key=len, default=None)
