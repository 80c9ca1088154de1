"""The members of a tar archive: names, places and sizes, from its headers alone."""

import posixpath
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from trainers.data.sources.archives.range_file import RangeFile, ReadAt
from trainers.errors import DataError

# Recordings are minutes or hours long; what claims more is none.
MOST_MEMBER_BYTES = 2**30
_BLOCK_BYTES = 16 * 1024
# Headers with long names and extended attributes.
_MOST_HEADER_BYTES = 2**20
# Transcripts next to each recording, as WebDataset has them.
_TEXTS, _MOST_TEXT_BYTES = (".txt", ".text", ".json"), 16 * 1024
_AGAIN = "fetch the archive again"


class Member(NamedTuple):
    """A member that is a file, or claims to be one.

    Attributes:
        name: Its path in the archive, without `./`.
        offset: Where its bytes begin in the archive, which is uncompressed.
        size: Its bytes.
        problem: Why it is not read; "" where it is.
        text: The bytes of a small text, which lies next to the headers; None of others.
    """

    name: str
    offset: int
    size: int
    problem: str = ""
    text: bytes | None = None


def read_members(location: str, read_at: ReadAt) -> Iterator[Member]:
    """Lists an archive's members, without reading recordings; folders are none.

    Args:
        location: The archive in messages.
        read_at: Reads a range of what it holds, uncompressed.

    Raises:
        DataError: it is damaged, was cut short, or goes on behind its end.
    """
    file = RangeFile(location, read_at, block_bytes=_BLOCK_BYTES, most_bytes=_MOST_HEADER_BYTES)
    try:
        with tarfile.open(fileobj=file, mode="r:", errors="backslashreplace") as archive:
            while (info := archive.next()) is not None:
                # They would all be kept.
                archive.members.clear()  # type: ignore[attr-defined]
                if not info.isdir():
                    yield _member(info, file)
            end = archive.offset
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise DataError(f"{location}: the archive is damaged or cut short ({error}): {_AGAIN}") from None
    _check_end(location, read_at, end)


def _member(info: tarfile.TarInfo, file: RangeFile) -> Member:
    problem, text = _problem(info), None
    if not problem and info.size <= _MOST_TEXT_BYTES and info.name.lower().endswith(_TEXTS):
        file.seek(info.offset_data)
        text = file.read(info.size)
    return Member(posixpath.normpath(info.name), info.offset_data, info.size, problem, text)


def _check_end(location: str, read_at: ReadAt, end: int) -> None:
    """Empty blocks end a tar. Without them tarfile ends silently, as it does at a header that is damaged."""
    tail = read_at(end, _MOST_HEADER_BYTES)
    if not tail:
        raise DataError(f"{location}: the archive ends at byte {end} without an end mark: it was cut short; {_AGAIN}")
    if tail.strip(b"\0"):
        raise DataError(
            f"{location}: the archive is damaged at byte {end}, or others were joined to it: {_AGAIN}, or name each by "
            "itself"
        )


def _problem(info: tarfile.TarInfo) -> str:
    if info.name.startswith("/") or ".." in info.name.split("/") or "\0" in info.name:
        return "its name leads out of the archive"
    if info.issym() or info.islnk():
        return "is a link, not a recording"
    if not info.isfile() or info.issparse():
        return "is no regular file"
    if info.size > MOST_MEMBER_BYTES:
        return f"claims {info.size} bytes, more than a recording has"
    return ""
