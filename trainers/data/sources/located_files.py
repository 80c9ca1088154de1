"""Files at paths of this node and in buckets, read alike."""

from pathlib import Path

from trainers.config.storage_location import StorageOptions, is_url
from trainers.errors import StorageError
from trainers.storage import open_storage

# What `read_start` gives: enough for the counts of an ARPA file, and for the header of a binary.
START_BYTES = 64 * 1024


def read_location(location: str, storage_options: StorageOptions, *, one_of_many: bool = False) -> bytes:
    """The bytes of a file at an absolute path or s3:// URL; for `one_of_many` see Storage.

    Raises:
        FileNotFoundError: there is no such file or object.
        StorageError: the bucket cannot be read.
    """
    if not is_url(location):
        return Path(location).read_bytes()
    folder, _, name = location.rpartition("/")
    storage = open_storage(folder, storage_options)
    try:
        return storage.read_one_of_many(name) if one_of_many else storage.read_bytes(name)
    except StorageError:
        if not storage.exists(name):
            raise FileNotFoundError(location) from None
        raise


def reason_of(error: OSError) -> str:
    """Why a file could not be read, for the message of whoever named it."""
    return "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror or error)


def read_start(location: str, storage_options: StorageOptions) -> bytes:
    """The first bytes of a file; errors as of `read_location`."""
    if not is_url(location):
        with Path(location).open("rb") as file:
            return file.read(START_BYTES)
    folder, _, name = location.rpartition("/")
    storage = open_storage(folder, storage_options)
    if not storage.exists(name):
        raise FileNotFoundError(location)
    return storage.read_part(name, 0, START_BYTES)
