"""Lists names, offsets and sizes of the members of a tar archive, from its headers, which are read in ranges."""

import errno
import io
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from trainers.errors import DataError

# Returns a number of bytes from an offset on, or fewer at the end.
ReadAt = Callable[[int, int], bytes]

# Recordings are minutes or hours long; a larger size is an error.
MOST_MEMBER_BYTES = 2**30
_BLOCK_BYTES = 16 * 1024
# Maximum size of a header, with long names and extended attributes.
_MOST_HEADER_BYTES = 2**20
# Transcripts next to each recording, as in WebDataset.
_TEXTS, _MOST_TEXT_BYTES = (".txt", ".text", ".json"), 16 * 1024
_MOST_TEXTS_BYTES = 2**28
# tar writes a few empty blocks at the end, or fills a tape record.
_MOST_END_BYTES = 2**20
HEADER_BYTES = tarfile.BLOCKSIZE
_AGAIN = "fetch the archive again"


class Member(NamedTuple):
    """A member that is, or claims to be, a file.

    Attributes:
        name: Its path in the archive, without `./`.
        offset: Offset of its content in the uncompressed archive.
        size: Size of its content in bytes.
        problem: Reason why it is not read, or "".
        text: Content of a small text, which is read with the headers; None for other members.
        checksum: CRC-32 of the header before its content, to detect a replaced archive; in a compressed archive, of its
            content, too.
    """

    name: str
    offset: int
    size: int
    problem: str = ""
    text: bytes | None = None
    checksum: int = 0


class RangeFile(io.RawIOBase):
    """Reads blocks of a file, of which the last is cached; skipped ranges are not read.

    An archive's header that claims more than `most_bytes` is invalid. `size_bytes` is the size of the file, for
    positions relative to its end; None if not known.
    """

    def __init__(self, name: str, read_at: ReadAt, *, block_bytes: int, most_bytes: int, size_bytes: int | None = None):
        super().__init__()
        self._name, self._read_at = name, read_at
        self._block_bytes, self._most_bytes, self._size_bytes = block_bytes, most_bytes, size_bytes
        self._position = self._block_start = 0
        self._block = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END and self._size_bytes is None:
            raise io.UnsupportedOperation("its end is not known")
        self._position = offset + {io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes or 0}.get(whence, 0)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= self._most_bytes:
            raise DataError(f"{self._name}: a header claims {size} bytes: it is damaged; {_AGAIN}")
        start = self._position - self._block_start
        if start < 0 or start + size > len(self._block):
            self._block_start, start = self._position, 0
            self._block = self._read_at(self._position, max(size, self._block_bytes))
        data = self._block[start : start + size]
        self._position += len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(min(len(buffer), self._most_bytes))
        buffer[: len(data)] = data
        return len(data)


def read_members(location: str, read_at: ReadAt, *, with_content: bool = False) -> Iterator[Member]:
    """Yields an archive's members; with `with_content`, also reads recordings, for their checksums.

    Folders are left out. `read_at` reads a range of the uncompressed archive; with `with_content`, ranges are in order,
    up to its end. Raises DataError if the archive is damaged or truncated, or has data after its end.
    """
    block_bytes = 1 if with_content else _BLOCK_BYTES
    file = RangeFile(location, read_at, block_bytes=block_bytes, most_bytes=_MOST_HEADER_BYTES)
    try:
        with tarfile.open(fileobj=file, mode="r:", errors="backslashreplace") as archive:
            end, texts_bytes = 0, 0
            while (info := archive.next()) is not None:
                # tarfile would otherwise keep all members.
                archive.members.clear()  # type: ignore[attr-defined]
                if info.size < 0 or archive.offset <= end:
                    raise tarfile.ReadError(f"{info.name!r} claims {info.size} bytes")
                end = archive.offset
                if not info.isdir():
                    member = _member(info, file, with_content=with_content)
                    texts_bytes += len(member.text or b"")
                    yield member
                if texts_bytes > _MOST_TEXTS_BYTES:
                    raise DataError(f"{location}: its texts have more than {_MOST_TEXTS_BYTES} bytes: name a manifest")
            end = archive.offset
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError, OSError) as error:
        if getattr(error, "errno", None) not in (None, errno.EINVAL, errno.EOVERFLOW):
            raise
        raise damaged(location, error) from None
    check_end(location, read_at, end)


def damaged(location: str, error: Exception) -> DataError:
    """Returns the error for an archive that a library cannot read."""
    # A browser may decompress a file that it downloads, and keep its name.
    problem = "the archive is damaged or truncated, or its content is not what its name says"
    return DataError(f"{location}: {problem} ({error}): {_AGAIN}")


def read_content(member: Member, read_at: ReadAt, *, with_content: bool) -> bytes | None:
    """Returns the content of a member; None if it or its header has changed since `read_members`."""
    data = read_at(member.offset - HEADER_BYTES, member.size + HEADER_BYTES)
    checked = data if with_content else data[:HEADER_BYTES]
    is_same = len(data) == member.size + HEADER_BYTES and zlib.crc32(checked) == member.checksum
    return data[HEADER_BYTES:] if is_same else None


def _member(info: tarfile.TarInfo, file: RangeFile, *, with_content: bool) -> Member:
    problem, text = _problem(info), None
    # The header is in the block that was read last.
    file.seek(info.offset_data - HEADER_BYTES)
    checksum = zlib.crc32(file.read(HEADER_BYTES))
    if not problem and info.size <= _MOST_TEXT_BYTES and info.name.lower().endswith(_TEXTS):
        text = file.read(info.size)
        checksum = zlib.crc32(text, checksum) if with_content else checksum
    elif with_content and not problem:
        left = info.size
        while left and (piece := file.read(min(left, _MOST_HEADER_BYTES))):
            checksum, left = zlib.crc32(piece, checksum), left - len(piece)
    return Member(posixpath.normpath(info.name), info.offset_data, info.size, problem, text, checksum)


def check_end(location: str, read_at: ReadAt, end: int) -> None:
    """Raises DataError if the empty blocks at a tar's end are missing, or followed by other data.

    tarfile reports no error for this or for a damaged header.
    """
    tail = read_at(end, _MOST_END_BYTES + 1)
    if not tail:
        raise DataError(f"{location}: the archive ends at byte {end} without an end mark: it is truncated; {_AGAIN}")
    if tail.strip(b"\0"):
        raise DataError(
            f"{location}: the archive is damaged at byte {end}, or others were joined to it: {_AGAIN}, or name each "
            "separately"
        )
    if len(tail) > _MOST_END_BYTES:
        raise DataError(f"{location}: there are only zeros after byte {end}, as if a download stopped there: {_AGAIN}")


def _problem(info: tarfile.TarInfo) -> str:
    if info.name.startswith("/") or ".." in info.name.split("/") or "\0" in info.name:
        return "its name leads out of the archive"
    if info.issym() or info.islnk():
        return "is a link, not a recording"
    if not info.isfile() or info.issparse():
        return "is not a regular file"
    if info.size > MOST_MEMBER_BYTES:
        return f"claims {info.size} bytes, more than a recording has"
    return ""
