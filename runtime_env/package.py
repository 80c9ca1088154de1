"""Measures, packs, verifies and imports packages of working directories. The only module that writes packages.

No name, size or link in a zip is trusted, since a package may come from another machine.
"""

import hashlib
import io
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, NamedTuple

from runtime_env.tree import ENTRY, Tree, TreeFile, unreadable
from trainers.errors import ConfigError

# Ray's Jobs API accepts only smaller packages (ray_constants.DASHBOARD_CLIENT_MAX_SIZE).
LIMIT_BYTES = 100 * 1024**2
# Rayscribe's own limits, so that no zip needs the ZIP64 format or fills a node's disk.
MAX_UNPACKED_BYTES = 2 * 1024**3 - 1
MAX_FILES = 65_535
LARGEST_SHOWN = 10
MIB = 1024**2
ENCRYPTED = 0x1
# The earliest time that a zip can store. Ray ignores times when it unpacks.
FIXED_TIME = (1980, 1, 1, 0, 0, 0)
UNIX = 3
CHUNK_BYTES = 1024**2
# Signature of an entry in a zip's directory; and the largest average length of entries with their names.
ENTRY_SIGNATURE, MAX_BYTES_OF_ENTRY = b"PK\1\2", 512


@dataclass(frozen=True)
class Package:
    """A package on this machine's disk."""

    sha256: str
    path: Path
    size_bytes: int
    files: int


def pack(
    tree: Tree, target_folder: Path, extra: Mapping[str, bytes | Path] | None = None, *, needed: str | None = ENTRY
) -> Package:
    """Writes the package as `<sha256>.zip`; the same content gives the same name and bytes.

    `needed` is the file that starts the job; None if it is not in the package.

    Raises:
        ConfigError: the package is larger than Ray accepts, a file cannot be read, `needed` is left out, or the path of
            an extra file is taken or is outside of the package.
    """
    extra = extra or {}
    names = [file.path for file in tree.files]
    if needed is not None and needed not in names:
        if not (tree.root / needed).is_file():
            raise ConfigError(no_such_file(tree.root, needed))
        reasons = [item.reason for item in tree.left_out if item.path in (needed, "./")]
        reason = f" (left out by {reasons[0]})" if reasons else ""
        raise ConfigError(f"{tree.root / needed} is not in the package{reason}, but starts the job: include it")
    _check_names([*names, *extra], "the package")
    target_folder.mkdir(parents=True, exist_ok=True)
    with _new_file(target_folder) as (file, path):
        try:
            size = _fill(file, tree, extra)
            _to_disk(file)
        except OSError as error:
            raise ConfigError(f"{target_folder}: {error.strerror}; free some space, or choose another disk") from None
        if not size.fits:
            raise ConfigError(size.message)
        sha256 = _digest(path)
        target = target_folder / f"{sha256}.zip"
        path.replace(target)
    return Package(sha256, target, size.zip_bytes, size.files)


def no_such_file(root: Path, needed: str) -> str:
    """Returns the message for a folder without the file that starts its job."""
    return f"{needed}: no such file in {root}, but it starts the job: correct its name, or start in its folder"


def verify(path: Path, sha256: str) -> None:
    """Raises ConfigError for a zip that is not the package of this hash, or cannot be unpacked safely."""
    name = f"package {sha256}"  # not its path, since the message may be shown on another machine
    try:
        size = path.stat().st_size
        if size >= LIMIT_BYTES:
            raise ConfigError(f"{name} has {size} bytes: Ray accepts less than {LIMIT_BYTES}")
        if _digest(path) != sha256:
            raise ConfigError(
                f"{name} is damaged: its SHA-256 is not {sha256}; submit the run again under another name"
            )
        members = _read_members(path)
    except FileNotFoundError:
        raise ConfigError(f"{name} was not found: submit the run again under another name") from None
    # NotImplementedError means that the archive needs a later version of zip.
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError, NotImplementedError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{name} is not a zip file that can be read: {reason}") from None
    except _TooManyError:
        raise ConfigError(f"{name} has more than {MAX_FILES} files, or too long names: leave some out") from None
    unpacked = sum(info.file_size for info in members)
    if unpacked > MAX_UNPACKED_BYTES:
        raise ConfigError(f"{name} would unpack to {unpacked} bytes: the limit is {MAX_UNPACKED_BYTES}")
    names = [info.orig_filename for info in members]
    _check_names(names, name)
    for info in members:
        _check_kind(info, name)


def has_entry(path: Path) -> bool:
    """Returns True if a verified package has the task.py that starts a training."""
    with zipfile.ZipFile(path) as archive:
        return ENTRY in archive.namelist()


def import_package(upload: Path, target: Path) -> None:
    """Copies an uploaded zip to `target`, `<sha256>.zip` in the folder of packages, after verifying it.

    Raises:
        ConfigError: the zip has another SHA-256, or content that a package must not have.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _new_file(target.parent) as (file, path):
        with upload.open("rb") as source:
            shutil.copyfileobj(source, file, CHUNK_BYTES)
        _to_disk(file)
        verify(path, target.stem)
        _check_contents(path, target.stem)
        path.replace(target)


def _check_names(names: list[str], where: str) -> None:
    """Rejects names that are outside of the folder, or that conflict with each other."""
    taken: set[str] = set()
    for name in names:
        parts = name.split("/")
        odd = "\\" in name or "\0" in name or name[1:2] == ":" or not {"", ".", ".."}.isdisjoint(parts)
        if odd or name in taken:
            raise ConfigError(f"{where} has a file {name!r}: every path must be relative, plain and unique")
        taken.add(name)
    ordered = sorted(taken)
    for name in ordered:
        after = bisect_left(ordered, f"{name}/")
        if after < len(ordered) and ordered[after].startswith(f"{name}/"):
            raise ConfigError(f"{where} has {name!r} as a file and as a folder")


def _check_kind(info: zipfile.ZipInfo, where: str) -> None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise ConfigError(f"{where}: {info.filename} is a link or a device: a package may only have plain files")
    if info.flag_bits & ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ConfigError(f"{where}: {info.filename} is encrypted, or compressed in a way that Ray may not know")


def _check_contents(path: Path, sha256: str) -> None:
    """Rejects a zip if a file cannot be unpacked, or does not match its CRC; `verify` has bounded their sizes."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    # Errors of a deflated stream, or of a header that differs from the zip's directory.
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ConfigError(f"package {sha256} cannot be unpacked: {error}; submit the run again") from None
    if damaged is not None:
        raise ConfigError(f"package {sha256} cannot be unpacked: {damaged!r} is damaged; submit the run again")


@dataclass(frozen=True)
class PackageSize:
    """Size of a package, written or not; if it does not fit, `zip_bytes` is the size when that was detected.

    `shipped` is the number of files of `data.ship`.
    """

    root: Path
    files: int
    total_bytes: int
    zip_bytes: int
    fits: bool
    largest: tuple[TreeFile, ...]
    shipped: int
    shipped_bytes: int

    @property
    def message(self) -> str:
        """The size as a line for people, with the fix if the package does not fit."""
        size = f"{self.files} files, {self.total_bytes / MIB:.1f} MiB unpacked"
        recordings = f"{self.shipped} of data.ship ({self.shipped_bytes / MIB:.1f} MiB)"
        size += f", including {recordings}" if self.shipped else ""
        if self.fits:
            return f"{self.root}: {size}, {self.zip_bytes / MIB:.1f} MiB as a zip of at most {LIMIT_BYTES // MIB}"
        shown = ", ".join(f"{file.path} {file.size_bytes / MIB:.1f} MiB" for file in self.largest)
        # Files from elsewhere have absolute paths.
        example = next((f"/{file.path}" for file in self.largest if not file.path.startswith("/")), "/data")
        fix = (
            f"Leave out what the job does not need: add a line {example} to .rayignore, or set "
            f"job.runtime_env.excludes: [{example}]"
        )
        if self.shipped:
            fix = f"Put the data on storage that every node can read, and set data.ship: false. {fix}"
        return (
            f"{self.root} is too large a working directory: {size}. Limits are {LIMIT_BYTES // MIB} MiB as a zip (by "
            f"Ray), {MAX_FILES} files and {MAX_UNPACKED_BYTES / MIB:.0f} MiB unpacked. Largest: {shown}. {fix}"
        )


def package_size(tree: Tree, extra: Mapping[str, bytes | Path] | None = None) -> PackageSize:
    """Computes the size of the package by writing its zip to memory, up to LIMIT_BYTES.

    Raises:
        ConfigError: a file cannot be read.
    """
    return _fill(io.BytesIO(), tree, extra or {})


def _fill(file: IO[bytes], tree: Tree, extra: Mapping[str, bytes | Path]) -> PackageSize:
    """Writes the zip until it no longer fits; raises like `package_size`, and OSError if `file` cannot be written."""
    size, fits = unpacked_size(tree, extra), False
    try:
        if size.fits:
            _write(_members(tree, extra), file)
            fits = True
    except _TooLargeError:
        pass
    except OSError as error:
        if error.filename is None:
            raise
        raise unreadable(error) from None
    return replace(size, zip_bytes=file.tell(), fits=fits)


def unpacked_size(tree: Tree, extra: Mapping[str, bytes | Path]) -> PackageSize:
    """Adds up the sizes of a package's files, without reading them; the zip may still be too large.

    Raises:
        ConfigError: a file cannot be read.
    """
    try:
        added = [TreeFile(str(each), each.stat().st_size, False) for each in extra.values() if isinstance(each, Path)]
    except OSError as error:
        raise unreadable(error) from None
    sized = [*tree.files, *added]
    written_bytes = sum(len(each) for each in extra.values() if isinstance(each, bytes))
    files, total = len(tree.files) + len(extra), sum(file.size_bytes for file in sized) + written_bytes
    largest = sorted(sized, key=lambda file: (-file.size_bytes, file.path))[:LARGEST_SHOWN]
    fits = files <= MAX_FILES and total < MAX_UNPACKED_BYTES
    shipped_bytes = sum(file.size_bytes for file in added)
    return PackageSize(tree.root, files, total, 0, fits, tuple(largest), len(added), shipped_bytes)


class _Member(NamedTuple):
    name: str
    source: Path | bytes
    executable: bool = False


class _TooLargeError(Exception):
    """The zip, or its unpacked content, exceeds its limit; the incomplete zip is useless."""


class _TooManyError(Exception):
    """A zip has more files than MAX_FILES, or too many bytes of names."""


class _Directory(io.FileIO):
    """A zip file; reading its directory counts the entries, before `zipfile` creates an object for each."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MAX_FILES * MAX_BYTES_OF_ENTRY:
            raise _TooManyError
        data = super().read(size) or b""
        if data.count(ENTRY_SIGNATURE) > MAX_FILES:
            raise _TooManyError
        return data


def _read_members(path: Path) -> list[zipfile.ZipInfo]:
    """Returns the files of a zip, in bounded memory; raises _TooManyError if it has more than MAX_FILES."""
    with _Directory(path) as file, zipfile.ZipFile(file) as archive:
        return archive.infolist()


def _members(tree: Tree, extra: Mapping[str, bytes | Path]) -> list[_Member]:
    """Returns the files of a package; raises ConfigError if an extra file has the path of one of the tree's."""
    taken = {file.path for file in tree.files}
    for name in extra:
        if name in taken:
            raise ConfigError(f"{tree.root / name}: a file of this name is added to the package: rename yours")
    ours = [_Member(file.path, tree.root / file.path, file.executable) for file in tree.files]
    return [*ours, *(_Member(name, content) for name, content in extra.items())]


def _write(members: Iterable[_Member], file: IO[bytes]) -> None:
    """Writes a zip with the same bytes for the same content: sorted names, fixed times, modes 644 and 755.

    Raises _TooLargeError if the zip reaches LIMIT_BYTES, or would unpack to MAX_UNPACKED_BYTES.
    """
    unpacked = 0
    with zipfile.ZipFile(file, "w") as archive:
        for member in sorted(members, key=lambda one: one.name.encode()):
            info = zipfile.ZipInfo(member.name, FIXED_TIME)
            info.create_system = UNIX
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | (0o755 if member.executable else 0o644)) << 16
            given = member.source
            info.file_size = len(given) if isinstance(given, bytes) else given.stat().st_size
            opened = io.BytesIO(given) if isinstance(given, bytes) else given.open("rb")
            with opened as source, archive.open(info, "w") as target:
                while chunk := source.read(CHUNK_BYTES):
                    unpacked += len(chunk)
                    if unpacked >= MAX_UNPACKED_BYTES or file.tell() >= LIMIT_BYTES:
                        raise _TooLargeError
                    target.write(chunk)
    if file.tell() >= LIMIT_BYTES:
        raise _TooLargeError


@contextmanager
def _new_file(folder: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Opens a new file, which only its owner can read; removes it after the block unless it was renamed."""
    number, name = tempfile.mkstemp(dir=folder, prefix=".", suffix=".part")
    path = Path(name)
    try:
        with os.fdopen(number, "w+b") as file:
            yield file, path
    finally:
        path.unlink(missing_ok=True)


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
