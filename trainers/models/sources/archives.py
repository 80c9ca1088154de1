"""Unpacks zip or tar archives of a model folder without trusting the names and sizes in them.

Only the files needed to open a model are written, each under its base name in one folder.
"""

import gzip
import io
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from trainers.data.sources.archives.tar_members import RangeFile, ReadAt, check_end
from trainers.errors import ConfigError, DataError, StorageError
from trainers.models.sources.model_files import CONFIG, description_files, is_zip, weight_files
from trainers.storage.full_disk import naming_full_disk, refuse_full

MAX_MEMBERS = 10_000
# Limit of all members together: ten times the size of the largest recognizers.
MAX_BYTES = 100 * 2**30
# Limit of one file apart from weights, which is read into memory: ten times the size of the largest tokenizers.
MAX_DESCRIPTION_BYTES = 2**28
# Limit of a single read, such as a tar's extended headers, which are kept in memory.
MAX_READ_BYTES = 2**24
_CHUNK_BYTES = 2**20
# The record at the end of a zip, which is followed by the zip's comment.
_END_OF_ZIP, _END_OF_ZIP_BYTES = b"PK\5\6", 22
# Offset of the number of members, and its value if a longer record has the number.
_COUNT_OFFSET, _COUNTED_ELSEWHERE = 10, 0xFFFF
# Before each member's content: a header, its name and extra fields, whose lengths are in the header.
_HEADER_BYTES, _LENGTHS_OFFSET = 30, 26
# After the content, if this bit is set: checksum and sizes, with or without a signature.
_HAS_DESCRIPTOR, _DESCRIPTORS_BYTES = 0x08, (12, 16, 20, 24)
_NO_GAP: tuple[int, ...] = (0,)
_GZIP = b"\x1f\x8b"
# Exceptions from reading a truncated file, or one of another format.
_UNREADABLE = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError),
    *(RuntimeError, NotImplementedError, ValueError, LookupError, struct.error),
)


@dataclass(frozen=True)
class Member:
    """A file in an archive: its path there, its declared size, and a function that opens it."""

    path: PurePosixPath
    size_bytes: int
    open: Callable[[], IO[bytes]]


def is_archive(file: Path) -> bool:
    """Returns True if a file is a zip or a tar, by its content."""
    if is_zip(file):
        return True
    try:
        with _opened_tar(file, str(file)) as (tar, _):
            return tar.next() is not None
    except (*_UNREADABLE, DataError):
        return False


def is_checkpoint(file: Path) -> bool:
    """Returns True if a file was written by `torch.save`, by its content: a zip with a pickle in it."""
    if not is_zip(file):
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            names = {PurePosixPath(name).parts[1:] for name in archive.namelist()}
    except _UNREADABLE:
        return False
    return {("data.pkl",), ("version",)} <= names


def unpack_model(file: Path, target: Path, origin: str, *, allow_pickle: bool) -> None:
    """Writes the files of the single model in an archive into a folder.

    Raises:
        ConfigError: A member is not a regular file below the root, or declares too large a size; there is not exactly
            one model; or its weights are pickled without permission.
        StorageError: The archive is truncated or damaged, or the disk is full.
    """
    try:
        with _members(file, origin) as members:
            chosen = _chosen(members, origin, allow_pickle=allow_pickle)
            refuse_full(target, sum(member.size_bytes for member in chosen), origin)
            for member in chosen:
                _write(member, target / member.path.name)
    except DataError as error:
        raise StorageError(str(error)) from error
    except _UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise StorageError(f"{origin}: cannot be unpacked; truncated or damaged ({reason}): copy it again") from error


def _chosen(members: list[Member], origin: str, *, allow_pickle: bool) -> list[Member]:
    """Returns the members needed to open the model."""
    homes = sorted(
        {member.path.parent for member in members if member.path.name == CONFIG}, key=lambda each: each.parts
    )
    if not homes:
        raise ConfigError(f"{origin}: holds no {CONFIG}, so it is not an archive of a model folder")
    home = min(homes, key=lambda each: len(each.parts))
    if others := [str(each) for each in homes if len(each.parts) == len(home.parts) and each != home]:
        raise ConfigError(f"{origin}: holds several models ({home}, {others[0]}): make an archive of one")
    inside = {member.path.name: member for member in members if member.path.parent == home}
    described = description_files(inside)
    if large := [name for name in described if inside[name].size_bytes > MAX_DESCRIPTION_BYTES]:
        raise ConfigError(
            f"{origin}: {large[0]} claims {inside[large[0]].size_bytes} bytes, and none next to the weights has more "
            f"than {MAX_DESCRIPTION_BYTES}: make an archive of the model folder alone"
        )
    names = {*described, *weight_files(inside, origin, allow_pickle=allow_pickle)}
    # In the order of the archive, since seeking back in a compressed archive means reading it again.
    return [member for name, member in inside.items() if name in names]


def _write(member: Member, path: Path) -> None:
    with naming_full_disk(), member.open() as source, path.open("xb") as file:
        shutil.copyfileobj(source, file, _CHUNK_BYTES)
    if (size := path.stat().st_size) != member.size_bytes:
        raise EOFError(f"{member.path} has {size} of {member.size_bytes} bytes")


@contextmanager
def _members(file: Path, origin: str) -> Iterator[list[Member]]:
    with ExitStack() as stack:
        if is_zip(file):
            archive = stack.enter_context(zipfile.ZipFile(file))
            members = list(_checked(_of_zip(archive, origin), origin))
            _check_zip(archive)
            yield members
        else:
            yield list(_checked(_of_tar(*stack.enter_context(_opened_tar(file, origin)), origin), origin))


def _check_zip(archive: zipfile.ZipFile) -> None:
    """Raises BadZipFile if a member's name or checksum differs from the directory's, or the zip has other data.

    All members are read, since one whose name is damaged in the directory would not be recognized as a model's file.
    """
    if (name := archive.testzip()) is not None:
        raise zipfile.BadZipFile(f"Bad CRC-32 or name of {name}")
    assert archive.fp is not None
    archive.fp.seek(-len(archive.comment) - _END_OF_ZIP_BYTES, io.SEEK_END)
    end = archive.fp.read(_END_OF_ZIP_BYTES)
    if not end.startswith(_END_OF_ZIP):
        raise zipfile.BadZipFile("there is data after the zip")
    # With a wrong length, the directory would be read without some entries.
    (count,) = struct.unpack_from("<H", end, _COUNT_OFFSET)
    if count not in (len(archive.infolist()), _COUNTED_ELSEWHERE):
        raise zipfile.BadZipFile(f"{len(archive.infolist())} of {count} members are in its directory")
    place, gaps = 0, _NO_GAP
    for item in sorted(archive.infolist(), key=lambda item: item.header_offset):
        if item.header_offset - place not in gaps:
            raise zipfile.BadZipFile(f"there is data before {item.filename}")
        archive.fp.seek(item.header_offset + _LENGTHS_OFFSET)
        place = item.header_offset + _HEADER_BYTES + sum(struct.unpack("<HH", archive.fp.read(4))) + item.compress_size
        gaps = _DESCRIPTORS_BYTES if item.flag_bits & _HAS_DESCRIPTOR else _NO_GAP
    if archive.start_dir - place not in gaps:
        raise zipfile.BadZipFile("there is data before its directory")


def _checked(members: Iterator[Member], origin: str) -> Iterator[Member]:
    """Yields the members, each checked before anything after it is read."""
    seen, total = set(), 0
    for number, member in enumerate(members, start=1):
        total += member.size_bytes
        if number > MAX_MEMBERS or total > MAX_BYTES:
            raise ConfigError(
                f"{origin}: claims more than {MAX_MEMBERS} files or {MAX_BYTES // 2**30} GiB: make an archive of the "
                "model folder alone"
            )
        if member.path in seen:
            raise ConfigError(f"{origin}: holds {str(member.path)!r} twice: make it again")
        seen.add(member.path)
        yield member


def _path(name: str, origin: str) -> PurePosixPath:
    """Returns the path of a member; raises ConfigError if it leads out of the target folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or ":" in name.partition("/")[0]:
        raise ConfigError(f"{origin}: holds {name!r}, a path outside of the archive: make it again, from the folder")
    return path


def _refuse_special(name: str, origin: str) -> None:
    raise ConfigError(f"{origin}: holds {name!r}, which is not a regular file: make it without links and devices")


def _of_zip(archive: zipfile.ZipFile, origin: str) -> Iterator[Member]:
    for item in archive.infolist():
        path = _path(item.filename, origin)
        mode = stat.S_IFMT(item.external_attr >> 16)
        if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
            _refuse_special(item.filename, origin)
        if not item.is_dir():
            yield Member(path, item.file_size, partial(archive.open, item))


def _of_tar(archive: tarfile.TarFile, read_at: ReadAt, origin: str) -> Iterator[Member]:
    for item in archive:
        path = _path(item.name, origin)
        if not (item.isreg() or item.isdir()) or item.issparse():
            _refuse_special(item.name, origin)
        if item.isreg():
            yield Member(path, item.size, partial(_content, archive, item))
    # Also checks a compression's checksum.
    check_end(origin, read_at, archive.offset)


def _content(archive: tarfile.TarFile, item: tarfile.TarInfo) -> IO[bytes]:
    found = archive.extractfile(item)
    assert found is not None, "it is a regular file"
    return found


@contextmanager
def _opened_tar(file: Path, origin: str) -> Iterator[tuple[tarfile.TarFile, ReadAt]]:
    """Yields a tar, and a reader of its uncompressed bytes."""
    with ExitStack() as stack:
        content: Any = stack.enter_context(file.open("rb"))
        if content.peek().startswith(_GZIP):
            content = stack.enter_context(gzip.GzipFile(fileobj=content))

        def read_at(start: int, length: int) -> bytes:
            content.seek(start)
            found: bytes = content.read(length)
            return found

        # Nothing is read ahead, since seeking back in a compressed tar means reading it again.
        bounded: Any = RangeFile(origin, read_at, block_bytes=1, most_bytes=MAX_READ_BYTES)
        yield stack.enter_context(tarfile.open(fileobj=bounded, mode="r:")), read_at
