"""Reads recordings, by picklable objects that are sent to the nodes with the rows."""

import errno
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from trainers.config.storage_location import StorageOptions, is_remote
from trainers.data.sources.located_files import read_location
from trainers.errors import AudioError, NoAccessError, StorageError

# Values of a row by column.
Row = Mapping[str, Any]

# Number of remote recordings that are downloaded in parallel, and kept until they are decoded.
FETCHED_AHEAD = 16
# Errors of paths that can never name a file: a file in place of a folder, circular links, too long a name.
_NO_FILE = (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


class RecordingReader(Protocol):
    """Reads the recordings of rows; picklable."""

    def read(self, rows: Sequence[Row]) -> Iterator[bytes | AudioError]:
        """Yields the recording of each row, or the error, in the order of the rows.

        Raises:
            DataError: A file of many recordings is damaged.
            StorageError: Recordings cannot be read now, or not on this node.
        """


@dataclass(frozen=True)
class Reading:
    """Reads one recording; a remote one is read ahead of its turn."""

    read: Callable[[], bytes]
    remote: bool


@dataclass(frozen=True)
class FileReader:
    """Reads recordings from separate files, which the column `audio` names: in folders, buckets, or on the Hub."""

    storage_options: StorageOptions

    def read(self, rows: Sequence[Row]) -> Iterator[bytes | AudioError]:
        """See `RecordingReader`; recordings on other machines are downloaded ahead, several in parallel."""
        return results_in_order(map(self.reading, rows))

    def read_missing(self, recordings: Iterable[tuple[Row, bytes | None]]) -> Iterator[bytes | AudioError]:
        """Yields the given recordings; reads those that are None from their files."""
        return results_in_order(
            self.reading(row) if known is None else Reading(partial(bytes, known), remote=False)
            for row, known in recordings
        )

    def reading(self, row: Row) -> Reading:
        location = str(row["audio"])
        return Reading(partial(_read_recording, location, self.storage_options), is_remote(location))


@dataclass(frozen=True)
class RowReader:
    """Takes recordings from a column of the rows that are sent to the nodes; reads files for rows without one."""

    column: str
    files: FileReader

    def read(self, rows: Sequence[Row]) -> Iterator[bytes | AudioError]:
        return self.files.read_missing((row, row[self.column]) for row in rows)


def results_in_order(readings: Iterable[Reading]) -> Iterator[bytes | AudioError]:
    """Yields recordings in order; those in buckets and on servers are downloaded ahead, several in parallel."""
    with ThreadPoolExecutor(FETCHED_AHEAD, thread_name_prefix="recordings") as pool:
        ahead: deque[Callable[[], bytes]] = deque()
        for reading in readings:
            ahead.append(pool.submit(reading.read).result if reading.remote else reading.read)
            if len(ahead) > FETCHED_AHEAD:
                yield _result(ahead.popleft())
        yield from map(_result, ahead)


def _result(reading: Callable[[], bytes]) -> bytes | AudioError:
    try:
        return reading()
    except AudioError as error:
        return error


def _read_recording(location: str, storage_options: StorageOptions) -> bytes:
    if not location:
        raise AudioError("its row has neither a recording nor a path")
    try:
        return read_location(location, storage_options)
    except FileNotFoundError:
        raise AudioError(f"no such file{_with_another_spelling(location)}") from None
    except IsADirectoryError:
        raise AudioError("is a folder, not a recording") from None
    except PermissionError:
        raise AudioError("permission denied") from None
    except NoAccessError as error:
        raise AudioError(without_location(error)) from None
    except OSError as error:
        if error.errno in _NO_FILE:
            raise AudioError(f"no such file ({str(error.strerror).lower()})") from None
        # A transient error, such as the restart of a file server, is not a property of the recording.
        raise StorageError(
            f"{location}: cannot be read: {error.strerror or error}; prepare again when it can"
        ) from error


def without_location(error: NoAccessError) -> str:
    """Returns why a file cannot be read, without its name, so that the text is the same for all in a bucket."""
    return str(error).partition(": ")[2]


def _with_another_spelling(location: str) -> str:
    """Returns how a path differs from that of a similar existing file; archives made on a Mac have names in NFD."""
    folder, _, name = location.rpartition("/")
    others = {f"in Unicode's {form}": unicodedata.normalize(form, location) for form in ("NFC", "NFD")}
    others["without spaces around it"] = f"{folder}/{name.strip()}"
    for how, path in others.items():
        with suppress(OSError):  # The other name may be too long.
            if not is_remote(location) and path != location and Path(path).is_file():
                return f"; there is one whose name is the same {how}"
    return ""
