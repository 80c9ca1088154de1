"""Reads recordings from archives on the nodes, each by its place; none is unpacked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from trainers.config.storage_location import StorageOptions, is_remote
from trainers.data.sources.archives.archive_path import is_compressed
from trainers.data.sources.archives.open_archive import open_archive
from trainers.data.sources.archives.range_file import ReadAt
from trainers.data.sources.archives.tar_members import Member, read_content
from trainers.data.sources.located_files import describe, reason_of
from trainers.data.sources.recording_readers import FileReader, Reading, Row, results_in_order
from trainers.errors import AudioError, StorageError
from trainers.storage import open_storage

# Columns that say where a row's recording is: null for one that is a file of its own. PROBLEM says why there is none.
ARCHIVE, OFFSET, SIZE, PROBLEM = "archive", "archive_offset", "archive_size", "archive_problem"
CHECKSUM = "archive_checksum"
COLUMNS = pa.schema(
    [
        (ARCHIVE, pa.dictionary(pa.int32(), pa.string())),
        (OFFSET, pa.int64()),
        (SIZE, pa.int64()),
        (PROBLEM, pa.string()),
        (CHECKSUM, pa.int64()),
    ]
)
# Archives that a process holds open.
_OPEN_ARCHIVES = 16


@dataclass(frozen=True)
class ArchiveState:
    """What an archive was when its rows were listed, and where its points are, see `ArchiveIndex`."""

    size_bytes: int
    mark: str
    points_url: str


@dataclass(frozen=True)
class ArchiveReader:
    """Reads the recordings of rows with the columns above, see `RecordingReader`.

    Attributes:
        archives: Each archive by its location.
        files: Reads recordings that are files of their own.
    """

    archives: Mapping[str, ArchiveState]
    files: FileReader

    def read(self, rows: Sequence[Row]) -> Iterator[bytes | AudioError]:
        return results_in_order(map(self._reading, rows))

    def _reading(self, row: Row) -> Reading:
        location = row[ARCHIVE]
        if row[PROBLEM]:
            return Reading(lambda: _refuse(str(row[PROBLEM])), remote=False)
        if location is None:
            return self.files.reading(row)
        state, options = self.archives[location], self.files.storage_options
        return Reading(
            lambda: _read_member(location, state, options, row),
            # A compressed one is read forwards.
            remote=is_remote(location) and not is_compressed(location),
        )


def _read_member(location: str, state: ArchiveState, options: StorageOptions, row: Row) -> bytes:
    member = Member("", int(row[OFFSET]), int(row[SIZE]), checksum=int(row[CHECKSUM]))
    try:
        data = read_content(member, _opened(location, state, options), with_content=is_compressed(location))
    except OSError as error:
        raise StorageError(
            f"{location}: cannot be read here: {reason_of(error)}; an archive must be one that every node reads"
        ) from error
    if data is None:
        raise StorageError(f"{location}: it was replaced since its rows were listed: prepare again")
    return data


@lru_cache(_OPEN_ARCHIVES)
def _opened(location: str, state: ArchiveState, options: StorageOptions) -> ReadAt:
    found = describe(location, options)
    # Copies on the disks of several nodes have times of their own.
    if found.size_bytes != state.size_bytes or (is_remote(location) and found.etag != state.mark):
        raise StorageError(f"{location}: it was replaced since its rows were listed: prepare again")
    read_at, points = open_archive(location, state.size_bytes, options)
    if points is not None and state.points_url:
        folder, _, name = state.points_url.rpartition("/")
        points.load(open_storage(folder, options).read_bytes(name))
    return read_at


def _refuse(problem: str) -> bytes:
    raise AudioError(problem)
