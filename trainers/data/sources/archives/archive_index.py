"""Indexes archives, and reads recordings in them by offset on the nodes; archives are never unpacked.

An index has the members, and for a compressed archive the seek points; it is made once, and cached.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from trainers.config.storage_location import StorageOptions, is_remote, without_password
from trainers.data.sources.archives.archive_path import is_compressed
from trainers.data.sources.archives.open_archive import SeekPoints, list_members, open_archive
from trainers.data.sources.archives.tar_members import Member, ReadAt, read_content
from trainers.data.sources.located_files import describe, reason_of
from trainers.data.sources.recording_readers import FileReader, Reading, Row, results_in_order
from trainers.errors import AudioError, DataError, NotHereError, StorageError
from trainers.storage import Storage, open_storage

# Folder next to the prepared sets, and version of the index's format.
FOLDER, VERSION = "archives", "3"
_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("problem", pa.string()),
        ("text", pa.binary()),
        ("checksum", pa.int64()),
    ]
)
# Columns with the location of a row's recording: null for a separate file. PROBLEM is the reason for a missing one.
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
# Maximum number of archives that a process keeps open.
_OPEN_ARCHIVES = 16


@dataclass(frozen=True)
class ArchiveState:
    """The size of an archive when its members were listed, and a mark that changes with its content.

    `points_url` is the URL of the seek points of a compressed archive; "" for others, and without a cache.
    """

    size_bytes: int
    mark: str
    points_url: str


@dataclass(frozen=True)
class ArchiveIndex:
    """The members of one archive by name, and a reader of its uncompressed content.

    The member of a name that occurs more than once has a problem, and is not read.
    """

    location: str
    state: ArchiveState
    members: Mapping[str, Member]
    read_at: ReadAt

    def content(self, name: str, most: int) -> bytes | None:
        """Returns the content of a member; None if there is no such member.

        Raises DataError if the member is not a regular file, or has more than `most` bytes.
        """
        member = self.members.get(name)
        if member is None:
            return None
        problem = member.problem or (f"has {member.size} bytes, more than {most}" if member.size > most else "")
        if problem:
            raise DataError(f"{self.location}/{name}: {problem}")
        if member.text is not None:
            return member.text
        content = read_content(member, self.read_at, with_content=is_compressed(self.location))
        if content is None:
            raise DataError(f"{self.location}/{name}: its archive was replaced while it was read: start again")
        return content


def open_index(location: str, storage_options: StorageOptions, cache: Storage | None) -> ArchiveIndex:
    """Opens an archive's index, or makes it from the archive's headers; `cache` stores indexes, next to prepared sets.

    A compressed archive is read completely, which checks its length and checksums.

    Raises:
        NotHereError: The archive does not exist.
        DataError: The archive is damaged or truncated.
        StorageError: Its bucket or server cannot be read.
    """
    try:
        found = describe(location, storage_options)
    except OSError as error:
        raise NotHereError(f"{without_password(location)}: {reason_of(error)}: name an archive") from None
    if is_remote(location) and not found.etag:
        raise StorageError(
            f"{without_password(location)}: its server sends neither ETag nor Last-Modified, which would show when the "
            "archive is replaced: download it, and give the path of the file"
        )
    key = f"{FOLDER}/{hashlib.sha256(location.encode()).hexdigest()[:32]}"
    stamp = json.dumps([VERSION, found.size_bytes, found.etag])
    read_at, points = open_archive(location, found.size_bytes, storage_options)
    members = _known(cache, key, stamp, points) if cache is not None else None
    if members is None:
        members = list_members(location, read_at, points)
        if cache is not None and points is not None:
            cache.write_bytes(f"{key}.points", points.dump())
        if cache is not None:
            cache.write_bytes(f"{key}.parquet", _stored(members, stamp))
    points_url = cache.url(f"{key}.points") if points is not None and cache is not None else ""
    by_name: dict[str, Member] = {}
    for member in members:
        is_repeated = member.name in by_name
        problem = "is in the archive several times: which one is meant is not known" if is_repeated else member.problem
        by_name[member.name] = member._replace(problem=problem)
    return ArchiveIndex(location, ArchiveState(found.size_bytes, found.etag, points_url), by_name, read_at)


def _known(cache: Storage, key: str, stamp: str, points: SeekPoints | None) -> list[Member] | None:
    """Returns the cached members of an archive, and loads its seek points.

    Returns None if the archive has changed, or the cached members or points are missing or damaged.
    """
    if not cache.exists(f"{key}.parquet"):
        return None
    try:
        table = pq.read_table(io.BytesIO(cache.read_bytes(f"{key}.parquet")))
        if (table.schema.metadata or {}).get(b"stamp") != stamp.encode():
            return None
        if points is not None:
            points.load(cache.read_bytes(f"{key}.points"))
    except (pa.ArrowException, DataError, StorageError):
        return None
    return [Member(*values) for values in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def _stored(members: list[Member], stamp: str) -> bytes:
    columns = list(zip(*members, strict=True)) or [()] * len(_SCHEMA)
    table = pa.table([pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)], _SCHEMA)
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"stamp": stamp}), sink, compression="zstd")
    return sink.getvalue()


@dataclass(frozen=True)
class ArchiveReader:
    """Reads the recordings of rows with the columns above, see `RecordingReader`; `files` reads separate files."""

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
            # A compressed archive is read sequentially.
            remote=is_remote(location) and not is_compressed(location),
        )


def _read_member(location: str, state: ArchiveState, options: StorageOptions, row: Row) -> bytes:
    member = Member("", int(row[OFFSET]), int(row[SIZE]), checksum=int(row[CHECKSUM]))
    try:
        data = read_content(member, _opened(location, state, options), with_content=is_compressed(location))
    except OSError as error:
        raise StorageError(
            f"{location}: cannot be read here: {reason_of(error)}; every node must be able to read the archive"
        ) from error
    if data is None:
        raise StorageError(f"{location}: it was replaced since its rows were listed: prepare again")
    return data


@lru_cache(_OPEN_ARCHIVES)
def _opened(location: str, state: ArchiveState, options: StorageOptions) -> ReadAt:
    found = describe(location, options)
    # Copies on the disks of several nodes have different modification times.
    if found.size_bytes != state.size_bytes or (is_remote(location) and found.etag != state.mark):
        raise StorageError(f"{location}: it was replaced since its rows were listed: prepare again")
    read_at, points = open_archive(location, state.size_bytes, options)
    if points is not None and state.points_url:
        folder, _, name = state.points_url.rpartition("/")
        points.load(open_storage(folder, options).read_bytes(name))
    return read_at


def _refuse(problem: str) -> bytes:
    raise AudioError(problem)
