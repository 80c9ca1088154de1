"""A snapshot of a checkpoint, which the program may delete while it is being stored.

A snapshot consists of hard links next to the output folder, which take neither time nor space, or of copies if the disk
does not support hard links. Files that the program rewrites in place are detected, see `Snapshot.check`.
"""

import contextlib
import hashlib
import os
import shutil
import uuid
from pathlib import Path

from trainers.errors import RayscribeError, StorageError
from trainers.scripts.outputs.layouts import Signature, signature_of
from trainers.storage.own_folder import own_temporary_folder


class ChangedError(RayscribeError):
    """The program has deleted or changed a checkpoint while it was being stored."""


class Snapshot:
    """The files of a checkpoint, which have the same paths below `root` as below the output folder."""

    def __init__(self, folder: Path, path: str, signature: Signature):
        """Raises ChangedError if the signature has changed, and StorageError if files cannot be read or copied."""
        self._source, self._path, self._signature = folder / path, path, signature
        self.root = snapshots_of(folder) / uuid.uuid4().hex
        try:
            for name, _, _ in signature:
                _link(_join(self._source, name), _join(self.root / path, name))
            self.check()
        except (OSError, ChangedError) as error:
            self.close()
            if isinstance(error, FileNotFoundError):
                raise ChangedError(f"{self._source} has been deleted") from error
            if isinstance(error, OSError):
                raise StorageError(f"{self._source} cannot be read: {error.strerror}; check its disk") from error
            raise

    @property
    def files(self) -> frozenset[str]:
        """The path of each file below the output folder."""
        return frozenset(f"{self._path}/{name}" if name else self._path for name, _, _ in self._signature)

    def check(self) -> None:
        """Raises ChangedError if a file has changed since the snapshot was taken."""
        if signature_of(self.root / self._path) != self._signature:
            raise ChangedError(f"{self._source} has changed while it was read")

    def close(self) -> None:
        """Removes the snapshot; the program's own files stay."""
        shutil.rmtree(self.root, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.root.parent.rmdir()


def snapshots_of(folder: Path) -> Path:
    """Returns a folder for files on their way to or from an output folder, where the program does not see them.

    It is next to the output folder, on the same disk, or in the temporary folder if the parent is not writable.
    """
    if not folder.parent.exists() or os.access(folder.parent, os.W_OK):
        return folder.parent / f".{folder.name}.rayscribe"
    return own_temporary_folder("snapshots") / hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def _join(path: Path, name: str) -> Path:
    return path / name if name else path


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Links the target of a symbolic link, since the program may replace the link.
    source = source.resolve(strict=True)
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)
