"""Zip files that are identical, byte for byte, if their content is."""

import io
import stat
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

# The earliest time that a zip can hold. Ray's unpacking ignores times.
FIXED_TIME = (1980, 1, 1, 0, 0, 0)
UNIX = 3
CHUNK_BYTES = 1024**2
# Signature of a file's entry in a zip's directory; and the maximum average length of entries with their names.
ENTRY_SIGNATURE, MAX_BYTES_OF_ENTRY = b"PK\1\2", 512


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive."""

    name: str
    source: Path | bytes
    executable: bool = False

    def open(self) -> IO[bytes]:
        return io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb")

    def size_bytes(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size


class TooLargeError(Exception):
    """The archive, or its unpacked content, exceeds its bound; what was written so far is useless."""


class TooManyError(Exception):
    """The archive has more files than its bound, or too many bytes of names."""


class _Directory(io.FileIO):
    """A zip whose directory is counted when it is read, before `zipfile` creates an object for each entry."""

    def __init__(self, path: Path, max_files: int):
        super().__init__(path)
        self._max_files = max_files

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > self._max_files * MAX_BYTES_OF_ENTRY:
            raise TooManyError
        data = super().read(size) or b""
        if data.count(ENTRY_SIGNATURE) > self._max_files:
            raise TooManyError
        return data


def read_members(path: Path, max_files: int) -> list[zipfile.ZipInfo]:
    """Returns the files of an archive, in bounded memory.

    Raises:
        TooManyError: it has more files.
        OSError: it cannot be read.
        BadZipFile: it is not a zip.
    """
    with _Directory(path, max_files) as file, zipfile.ZipFile(file) as archive:
        return archive.infolist()


def write_archive(members: Iterable[Member], file: IO[bytes], *, max_bytes: int, max_unpacked_bytes: int) -> None:
    """Writes a zip: names sorted, times fixed, modes 644 and 755.

    Raises:
        TooLargeError: a bound is reached.
        OSError: a file cannot be read.
    """
    unpacked = 0
    with zipfile.ZipFile(file, "w") as archive:
        for member in sorted(members, key=lambda one: one.name.encode()):
            info = zipfile.ZipInfo(member.name, FIXED_TIME)
            info.create_system = UNIX
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | (0o755 if member.executable else 0o644)) << 16
            info.file_size = member.size_bytes()
            with member.open() as source, archive.open(info, "w") as target:
                while chunk := source.read(CHUNK_BYTES):
                    unpacked += len(chunk)
                    if unpacked >= max_unpacked_bytes or file.tell() >= max_bytes:
                        raise TooLargeError
                    target.write(chunk)
    if file.tell() >= max_bytes:
        raise TooLargeError
