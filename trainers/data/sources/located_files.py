"""Files at paths of this node, in buckets and on web servers, read alike."""

import os
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainers.config.storage_location import StorageOptions, is_hub_url, is_remote, is_url, is_web_url
from trainers.errors import NoAccessError, StorageError
from trainers.storage import Entry, Storage, open_storage
from trainers.storage.web_files import describe_web_file, read_web_file, read_web_range

# What `read_start` gives: enough for the counts of an ARPA file, and for the header of a binary.
START_BYTES = 64 * 1024
_UNPACKED = re.compile(r"/.*(/working_dir_files/_ray_pkg_[^/]+)(?=/)")


def on_this_node(path: str) -> str:
    """A path; one into a job's package, which each node unpacks below a temporary folder of its own, as it is here."""
    found = _UNPACKED.match(path)
    if found is None:
        return path
    # Ray puts the folder of its job's package there, in each process.
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return next((folder for folder in folders if folder.endswith(found[1])), found[0]) + path[found.end() :]


def read_location(location: str, storage_options: StorageOptions, *, one_of_many: bool = False) -> bytes:
    """The bytes of a file at an absolute path or URL; for `one_of_many` see Storage.

    Raises:
        FileNotFoundError: there is no such file or object.
        NoAccessError: there is no such bucket, or it may not be read.
        StorageError: the bucket or the server cannot be read.
    """
    if is_web_url(location):
        return read_web_file(location)
    if is_hub_url(location):
        with open_url(location) as file:
            content: bytes = file.read()
            return content
    if not is_url(location):
        return Path(on_this_node(location)).read_bytes()
    storage, name = _opened(location, storage_options)
    read = storage.read_one_of_many if one_of_many else storage.read_bytes
    return _existing(storage, name, lambda: read(name), storage_options)


def read_range(location: str, start: int, length: int, storage_options: StorageOptions) -> bytes:
    """Bytes of a file from `start` on, fewer than `length` only at its end; errors as of `read_location`."""
    if is_web_url(location):
        return read_web_range(location, start, length)
    if is_hub_url(location):
        with open_url(location) as file:
            file.seek(start)
            part: bytes = file.read(length)
            return part
    if not is_url(location):
        with Path(on_this_node(location)).open("rb", buffering=0) as file:
            file.seek(start)
            return file.read(length)
    storage, name = _opened(location, storage_options)
    return _existing(storage, name, lambda: storage.read_part(name, start, length), storage_options) if length else b""


def describe(location: str, storage_options: StorageOptions) -> Entry:
    """Size of a file, and what changes with its content: an ETag, or when it was changed; errors as `read_location`."""
    if is_web_url(location):
        return describe_web_file(location)
    if is_hub_url(location):
        with open_url(location) as file:
            # Its files are kept by the hash of their content.
            return Entry(location, file.size, 0.0, str(file.details.get("blob_id", "")))
    if not is_url(location):
        status = Path(on_this_node(location)).stat()
        # A copy may bring its time with it; the second one is the system's.
        return Entry(location, status.st_size, status.st_mtime, f"{status.st_mtime_ns} {status.st_ctime_ns}")
    storage, name = _opened(location, storage_options)
    entry = storage.entry(name)
    if entry is None:
        _require_bucket(location, storage_options)
        raise FileNotFoundError(location)
    return entry


def is_file(location: str, storage_options: StorageOptions) -> bool:
    """Whether there is a file at a location; raises StorageError where that cannot be known."""
    if not is_remote(location):
        return Path(on_this_node(location)).is_file()
    try:
        describe(location, storage_options)
    except FileNotFoundError:
        return False
    return True


def open_url(url: str) -> Any:
    """Opens a path, or a URL that fsspec knows, for reading bytes. Raises OSError: it cannot be read."""
    # It comes with `datasets`, which is not there where only a client runs.
    import fsspec  # noqa: PLC0415

    return fsspec.open(on_this_node(url), "rb").open()


def hub_files(folder: str) -> list[str]:
    """All files below a folder of a repository of the Hub, as paths from it, sorted; none where there is no folder.

    Raises:
        OSError: there is no such repository, or the Hub cannot be read.
    """
    import fsspec  # noqa: PLC0415

    file_system, path = fsspec.url_to_fs(folder)
    root = f"{file_system.resolve_path(path).unresolve()}/"
    return [name.removeprefix(root) for name in file_system.find(path) if name.startswith(root)]


def reason_of(error: OSError) -> str:
    """Why a file could not be read, for the message of whoever named it."""
    return "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror or error)


def read_start(location: str, storage_options: StorageOptions) -> bytes:
    """The first bytes of a file; errors as of `read_location`."""
    return read_range(location, 0, START_BYTES, storage_options)


def _opened(url: str, storage_options: StorageOptions) -> tuple[Storage, str]:
    folder, _, name = url.rpartition("/")
    if not name or folder.endswith(":/"):  # A folder, or a bucket.
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
    """Raises NoBucketError where there is none, which a response about one object may not tell."""
    scheme, _, path = url.partition("://")
    _list_beginning(f"{scheme}://{path.partition('/')[0]}", storage_options)


@lru_cache(64)
def _list_beginning(bucket: str, storage_options: StorageOptions) -> None:
    """Once for a bucket, from its first name to one before almost all; where it may not be listed, it is there."""
    open_storage(bucket, storage_options).list_some({"!"})
