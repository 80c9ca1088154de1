"""The package of a working directory: packed, verified, imported. The only module that writes packages.

No name, size or link in a zip is trusted: a package may come from another machine.
"""

import hashlib
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runtime_env.archive import CHUNK_BYTES, TooLargeError, TooManyError, read_members, write_archive
from runtime_env.tree import ENTRY, LIMIT_BYTES, MAX_FILES, MAX_UNPACKED_BYTES, Tree, package_size, unreadable
from trainers.errors import ConfigError

ENCRYPTED = 0x1


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
    """Writes the package, `<sha256>.zip`: the same content gives the same name, byte for byte.

    `needed` is the file that the job starts with, if it is in the package.

    Raises:
        ConfigError: it is larger than Ray accepts, a file cannot be read, `needed` is left out, or the path of an extra
            file is taken or leads out of the package.
    """
    extra = extra or {}
    names = [file.path for file in tree.files]
    if needed is not None and needed not in names:
        if not (tree.root / needed).is_file():
            raise ConfigError(no_such_file(tree.root, needed))
        reasons = [item.reason for item in tree.left_out if item.path in (needed, "./")]
        reason = f" (left out by {reasons[0]})" if reasons else ""
        raise ConfigError(f"{tree.root / needed} is not in the package{reason}: the job starts with it; include it")
    _check_names([*names, *extra], "the package")
    members = tree.members(extra)
    if len(members) > MAX_FILES:
        raise ConfigError(package_size(tree, extra).message)
    target_folder.mkdir(parents=True, exist_ok=True)
    with _new_file(target_folder) as (file, path):
        try:
            write_archive(members, file, max_bytes=LIMIT_BYTES, max_unpacked_bytes=MAX_UNPACKED_BYTES)
        except TooLargeError:
            raise ConfigError(package_size(tree, extra).message) from None
        except OSError as error:
            if error.filename is None:
                raise ConfigError(
                    f"{target_folder}: {error.strerror}; free some space, or choose another disk"
                ) from None
            raise unreadable(error) from None
        _to_disk(file)
        sha256, size_bytes = _digest(path), path.stat().st_size
        target = target_folder / f"{sha256}.zip"
        path.replace(target)
    return Package(sha256, target, size_bytes, len(members))


def no_such_file(root: Path, needed: str) -> str:
    """Returns the message for a folder without the file that its job starts with."""
    return f"{needed}: no such file in {root}, and the job starts with it: correct its name, or start in its folder"


def verify(path: Path, sha256: str) -> None:
    """Raises ConfigError for a zip that is not the package of this hash, or could not be unpacked safely."""
    name = f"package {sha256}"  # not its path: the message may be shown on another machine
    try:
        size = path.stat().st_size
        if size >= LIMIT_BYTES:
            raise ConfigError(f"{name} has {size} bytes: Ray takes a package of less than {LIMIT_BYTES}")
        if _digest(path) != sha256:
            raise ConfigError(
                f"{name} is damaged: its SHA-256 is not {sha256}; submit the run again under another name"
            )
        members = read_members(path, MAX_FILES)
    except FileNotFoundError:
        raise ConfigError(f"{name} was not found: submit the run again under another name") from None
    # NotImplementedError: the archive needs a later version of zip.
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError, NotImplementedError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{name} is not a zip file that can be read: {reason}") from None
    except TooManyError:
        raise ConfigError(f"{name} holds more files than {MAX_FILES}, or too long names: leave some out") from None
    unpacked = sum(info.file_size for info in members)
    if unpacked > MAX_UNPACKED_BYTES:
        raise ConfigError(f"{name} would unpack to {unpacked} bytes: {MAX_UNPACKED_BYTES} are the most")
    names = [info.orig_filename for info in members]
    _check_names(names, name)
    for info in members:
        _check_kind(info, name)


def has_entry(path: Path) -> bool:
    """Returns True if a verified package has the file with which a training starts."""
    with zipfile.ZipFile(path) as archive:
        return ENTRY in archive.namelist()


def import_package(upload: Path, target: Path) -> None:
    """Copies a zip from elsewhere to `<sha256>.zip` in the folder of packages, after verifying it.

    Raises:
        ConfigError: its SHA-256 is another, or it holds something that no package may.
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
    """Rejects names that lead out of the folder, or that conflict with each other."""
    taken: set[str] = set()
    for name in names:
        parts = name.split("/")
        odd = "\\" in name or "\0" in name or name[1:2] == ":" or not {"", ".", ".."}.isdisjoint(parts)
        if odd or name in taken:
            raise ConfigError(f"{where} holds a file {name!r}: every path must be relative, plain and there only once")
        taken.add(name)
    ordered = sorted(taken)
    for name in ordered:
        after = bisect_left(ordered, f"{name}/")
        if after < len(ordered) and ordered[after].startswith(f"{name}/"):
            raise ConfigError(f"{where} holds {name!r} as a file and as a folder")


def _check_kind(info: zipfile.ZipInfo, where: str) -> None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise ConfigError(f"{where}: {info.filename} is a link or a device: a package holds plain files only")
    if info.flag_bits & ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ConfigError(f"{where}: {info.filename} is encrypted, or compressed in a way that Ray may not know")


def _check_contents(path: Path, sha256: str) -> None:
    """Rejects a zip whose files cannot all be unpacked to their CRCs; `verify` has bounded their sizes."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    # Errors of a deflated stream, or of a header that differs from the directory's.
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ConfigError(f"package {sha256} cannot be unpacked: {error}; submit the run again") from None
    if damaged is not None:
        raise ConfigError(f"package {sha256} cannot be unpacked: {damaged!r} is damaged; submit the run again")


@contextmanager
def _new_file(folder: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Opens a new file, readable by its owner only, and removes it after the block unless it was renamed."""
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
