"""A node's copies of inputs, by what marks their content; what no run has used for days is removed."""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO
from uuid import uuid4

UNUSED_S = 3 * 24 * 3600.0
_USED = ".used"
# Folders that this process holds until it ends: a script may read its inputs for longer than UNUSED_S.
_held: dict[Path, IO[str]] = {}


class InputCache:
    """Folders of inputs, and recordings, which manifests share: a folder has them as hard links, which take no space.

    Args:
        root: A folder of this user's on the node; it is made.
    """

    def __init__(self, root: Path):
        self._inputs, self._recordings = root / "inputs", root / "recordings"

    def folder(self, *key: str) -> Path:
        """The folder of what has a key, which makes it when it is new; it is there as long as this process lives."""
        folder = self._inputs / _name(*key)
        if folder in _held:
            return folder
        if not folder.exists():
            self._remove_unused()
        while True:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                used = (folder / _USED).open("a")
                fcntl.flock(used, fcntl.LOCK_SH)
                if os.path.samestat(os.fstat(used.fileno()), (folder / _USED).stat()):
                    os.utime(folder / _USED)
                    _held[folder] = used
                    return folder
            except FileNotFoundError:
                pass
            # Another process was removing it as unused.

    def link_recording(self, link: Path, key: tuple[str, ...], fetch: Callable[[Path], None]) -> None:
        """Puts a recording at `link`; where the node has none of its key, `fetch` writes it to the file it is given."""
        name = _name(*key)
        kept = self._recordings / name[:2] / name
        link.parent.mkdir(parents=True, exist_ok=True)
        while not link.exists():
            try:
                os.link(kept, link)
            except FileNotFoundError:  # not fetched yet, or removed as unused
                kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                part = kept.with_name(f".{uuid4().hex}.part")
                fetch(part)
                part.replace(kept)
            except FileExistsError:  # another process was faster
                return

    def _remove_unused(self) -> None:
        before = time.time() - UNUSED_S
        for folder in self._inputs.glob("*"):
            try:
                with (folder / _USED).open() as used:
                    if os.fstat(used.fileno()).st_mtime < before:
                        fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder, ignore_errors=True)
            except (FileNotFoundError, BlockingIOError):  # another process removes it, or uses it
                continue
        for file in self._recordings.glob("*/*"):
            try:
                status = file.stat()
            except FileNotFoundError:
                continue
            if status.st_nlink == 1 and status.st_mtime < before:
                file.unlink(missing_ok=True)


def _name(*key: str) -> str:
    return hashlib.sha256("\0".join(key).encode(errors="surrogateescape")).hexdigest()[:32]
