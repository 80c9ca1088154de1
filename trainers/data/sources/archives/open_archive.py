"""Lists members of archives and reads any byte range, in compressed archives by seek points."""

import gzip
import io
import zlib
from collections.abc import Callable
from typing import BinaryIO, TypeVar

from trainers.config.storage_location import StorageOptions, is_remote, without_password
from trainers.data.sources.archives.archive_path import is_compressed
from trainers.data.sources.archives.tar_members import Member, RangeFile, ReadAt, damaged, read_members
from trainers.data.sources.located_files import on_this_node, read_range

T = TypeVar("T")

# Bytes read at a time from a compressed archive that is not on this node's disk.
_BLOCK_BYTES = 4 * 2**20
# Maximum number of points, each of which takes 32 KB, and minimum number of decompressed bytes between two.
_MOST_POINTS, _LEAST_SPACING_BYTES = 2048, 4 * 2**20
# Typical gzip ratio for tables and WAV; a wrong guess only changes the number of points.
_USUAL_RATIO = 2


def open_archive(location: str, size_bytes: int, storage_options: StorageOptions) -> "tuple[ReadAt, SeekPoints | None]":
    """Returns a reader of an archive's uncompressed bytes by offset; for a compressed one, also its seek points."""

    def read_at(start: int, length: int) -> bytes:
        return read_range(location, start, length, storage_options)

    if not is_compressed(location):
        return read_at, None
    points = SeekPoints(location, read_at, size_bytes)
    return points.read_at, points


def list_members(location: str, read_at: ReadAt, points: "SeekPoints | None") -> list[Member]:
    """Returns the members of an opened archive, see `read_members`; reads a compressed one to its end to check it."""
    if points is None:
        return list(read_members(without_password(location), read_at))
    # Unlike indexed_gzip, Python's reader compares the checksum and length of each stream, and refuses other data.
    with points.opened() as file, gzip.GzipFile(fileobj=file) as content:

        def read_next(start: int, length: int) -> bytes:
            try:
                content.seek(start)
                return content.read(length)
            # zlib.error has no common base class, and errors of the disk have an errno.
            except (OSError, EOFError, zlib.error) as error:
                if getattr(error, "errno", None) is not None:
                    raise
                raise damaged(without_password(location), error) from None

        return list(read_members(without_password(location), read_next, with_content=True))


class SeekPoints:
    """Reads any byte range of a compressed archive by seek points; does not check checksums, unlike `list_members`."""

    def __init__(self, location: str, read_at: ReadAt, size_bytes: int):
        # Imported here because the client alone does not install it.
        from indexed_gzip import IndexedGzipFile  # noqa: PLC0415

        self._location = location
        self._failure: Exception | None = None
        self._stored_at, self._size_bytes = self._noting(read_at), size_bytes
        spacing = max(_LEAST_SPACING_BYTES, _USUAL_RATIO * size_bytes // _MOST_POINTS)
        self._file = IndexedGzipFile(fileobj=self.opened(), spacing=spacing)

    def opened(self) -> BinaryIO:
        """Opens the compressed archive again."""
        if not is_remote(self._location):
            return open(on_this_node(self._location), "rb")  # noqa: PTH123 -- its reader closes it
        blocks = {"block_bytes": _BLOCK_BYTES, "most_bytes": _BLOCK_BYTES}
        raw = RangeFile(self._location, self._stored_at, **blocks, size_bytes=self._size_bytes)
        return io.BufferedReader(raw, _BLOCK_BYTES)

    def read_at(self, start: int, length: int) -> bytes:
        """Returns decompressed bytes at an offset."""
        # Seeking beyond the end stops at the end.
        return self._checked(lambda: bytes(self._file.read(length)) if self._file.seek(start) == start else b"")

    def load(self, points: bytes) -> None:
        """Loads points that `dump` returned."""
        self._checked(lambda: self._file.import_index(fileobj=io.BytesIO(points)))

    def dump(self) -> bytes:
        """Reads the archive to its end, and returns its points."""
        sink = io.BytesIO()
        self._checked(self._file.build_full_index)
        self._checked(lambda: self._file.export_index(fileobj=sink))
        return sink.getvalue()

    def _checked(self, call: Callable[[], T]) -> T:
        try:
            return call()
        # The library raises these for damage, without an errno.
        except (OSError, ValueError) as error:
            if self._failure is not None:
                raise self._failure from None
            if getattr(error, "errno", None) is not None:
                raise
            raise damaged(self._location, error) from None

    def _noting(self, read_at: ReadAt) -> ReadAt:
        """Returns a reader that keeps its error in `_failure`, since the library reports it as damage."""

        def read(start: int, length: int) -> bytes:
            try:
                return read_at(start, length)
            except Exception as error:
                self._failure = error
                raise

        return read
