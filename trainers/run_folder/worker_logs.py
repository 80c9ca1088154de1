"""Keeps the logs of workers in the run folder, one file per rank, even if the node is lost.

Ray writes a worker's stdout and stderr, including output of C++, to two files on the node. A thread copies new complete
lines of both to one file, and uploads that file to the run folder. The file only grows, so a reader needs only an
offset. The worker writes directly to Ray's files, so a worker that crashes loses no last lines: the next worker of the
run on the node, or the driver there, uploads the rest of a dead worker's log (`finish_logs`).
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from trainers.config.secrets import secret_lines
from trainers.errors import RayscribeError, StoppedError, StorageError
from trainers.run_folder.attempt_status import worker_log_key
from trainers.run_folder.layout import RunFolder
from trainers.storage.own_folder import own_temporary_folder

POLL_S = 1.0
# A bucket cannot append, so the complete file is sent each time; a longer file is sent less often.
REFRESH_S, REFRESH_BYTES_PER_S = 3.0, 4 << 20
MAX_BYTES = 64 << 20
# Name of the folder for a node's logs.
PURPOSE = "logs"
BLOCK_BYTES = 1 << 20
# A line this long, such as a progress bar, is copied in parts.
LONG_LINE_BYTES = 64 << 10
FULL = f"this log has reached {MAX_BYTES >> 20} MiB and ends here; Ray's own logs on the node have the rest\n".encode()
MASK = b"***"
# torch prints this from C++ because of an argument that we set, see `trainers/training/arguments.py:FIXED`.
NOISE = re.compile(rb"^.*find_unused_parameters=True was specified in DDP constructor.*\n", re.MULTILINE)


@dataclass
class TailedFile:
    """A process's output file; `rest` is the text at its end that is not a complete line yet."""

    path: str
    offset: int
    rest: bytes = b""

    def take(self, secrets: Sequence[bytes], *, to_the_end: bool) -> bytes:
        """Returns the new bytes up to the last complete line, with the values of secrets masked.

        With `to_the_end`, the process prints nothing more, so the last line counts as complete.
        """
        with Path(self.path).open("rb") as file:
            file.seek(self.offset)
            block = file.read(BLOCK_BYTES)
        self.offset += len(block)
        text = self.rest + block
        if to_the_end and len(block) < BLOCK_BYTES:
            if text and not text.endswith(b"\n"):
                text += b"\n"
            cut = len(text)
        elif len(text) > LONG_LINE_BYTES and b"\n" not in text:
            cut = _cut_outside_secrets(text, secrets)
        else:
            cut = text.rfind(b"\n") + 1
        taken, self.rest = text[:cut], text[cut:]
        for secret in secrets:
            taken = taken.replace(secret, MASK)
        return NOISE.sub(b"", taken)


def _cut_outside_secrets(text: bytes, secrets: Sequence[bytes]) -> int:
    """Returns where an unfinished line may be split without splitting a secret."""
    cut, before = len(text) - max(map(len, secrets), default=0), -1
    while cut != before:
        before = cut
        for secret in secrets:
            start = text.find(secret, max(0, cut - len(secret) + 1))
            if 0 <= start < cut:
                cut = start
    return cut


@contextlib.contextmanager
def copied_log(folder: RunFolder, attempt: int, *, rank: int, group: str) -> Iterator[None]:
    """Copies the log of the calling process while the block runs. Errors of copying do not affect the worker."""
    copy: _Copy | None = None
    if sources := _sources_of_this_process():
        base = own_temporary_folder(PURPOSE) / f"{_local_name(folder)}-{attempt}-{rank}-{group}"
        with contextlib.suppress(OSError, StorageError):
            copy = _Copy.begin(base, worker_log_key(attempt, rank, group), sources)
    if copy is None:
        yield
        return
    closed = threading.Event()
    thread = threading.Thread(target=_follow, args=(copy, folder, closed), name="worker-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        _finish(copy, folder)


def _follow(copy: "_Copy", folder: RunFolder, closed: threading.Event) -> None:
    sent_bytes, sent_s = 0, time.monotonic()
    while not closed.wait(POLL_S):
        with contextlib.suppress(OSError, StorageError):
            size = copy.take_all()
            due_s = sent_s + max(REFRESH_S, size / REFRESH_BYTES_PER_S)
            if size > sent_bytes and time.monotonic() >= due_s:
                folder.storage.upload_file(copy.log, copy.key)
                sent_bytes, sent_s = size, time.monotonic()


@contextlib.contextmanager
def worker_log(folder: RunFolder, attempt: int, *, rank: int, group: str) -> Iterator[None]:
    """Keeps a worker's log while the block runs, and adds the block's error, which Ray prints in another process."""
    with copied_log(folder, attempt, rank=rank, group=group):
        try:
            yield
        except StoppedError:
            raise
        # Printing may fail, since the disk with Ray's copy of stderr may be full.
        except RayscribeError as error:
            with contextlib.suppress(OSError):
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            raise
        except Exception:
            with contextlib.suppress(OSError):
                traceback.print_exc()
            raise


def finish_logs(folder: RunFolder) -> None:
    """Uploads the last lines of the run's killed processes on this node."""
    notes: list[Path] = []
    with contextlib.suppress(StorageError):
        # Only this user's notes, since those of others could make this process upload any file of this user.
        notes = sorted(own_temporary_folder(PURPOSE).glob(f"{_local_name(folder)}-*.json"))
    for note in notes:
        with contextlib.suppress(OSError, ValueError, KeyError):
            copy = _Copy.of_a_dead_process(note)
            if copy is not None:
                _finish(copy, folder)


class _Copy:
    """A copy of a process's output, next to a JSON file with the offsets; locked while the process lives."""

    def __init__(self, base: Path, key: str, sources: list[TailedFile], lock: TextIO):
        self._base, self._lock = base, lock
        self.key, self.sources = key, sources
        self.log = base.with_suffix(".log")
        # Split into lines, since output is copied line by line.
        self._secrets = [line.encode() for line in secret_lines(os.environ)]

    @classmethod
    def begin(cls, base: Path, key: str, sources: list[TailedFile]) -> "_Copy":
        lock = base.with_suffix(".lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        copy = cls(base, key, sources, lock)
        copy.log.write_bytes(b"")
        copy._note()
        return copy

    @classmethod
    def of_a_dead_process(cls, note: Path) -> "_Copy | None":
        """Returns the copy of a dead process; None if the process lives, or another process is finishing its log."""
        lock = note.with_suffix(".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        content: dict[str, Any] = json.loads(note.read_text())
        copy = cls(note.with_suffix(""), content["key"], [TailedFile(**item) for item in content["sources"]], lock)
        if copy.log.stat().st_size > content["size"]:
            # The bytes beyond this size were copied before their offsets were written, so they are copied again.
            os.truncate(copy.log, content["size"])
        return copy

    def take_all(self, *, to_the_end: bool = False) -> int:
        """Copies new output, and returns the size of the copy in bytes."""
        size = self.log.stat().st_size
        before = size
        with self.log.open("ab") as log:
            for source in self.sources:
                while size < MAX_BYTES and (new := source.take(self._secrets, to_the_end=to_the_end)):
                    size += log.write(new)
                    if size >= MAX_BYTES:
                        size += log.write(FULL)
        if size != before:
            self._note()
        return size

    def remove(self) -> None:
        for suffix in (".json", ".log", ".lock"):
            self._base.with_suffix(suffix).unlink(missing_ok=True)
        self._lock.close()

    def _note(self) -> None:
        sources = [{"path": item.path, "offset": item.offset - len(item.rest)} for item in self.sources]
        note = {"key": self.key, "sources": sources, "size": self.log.stat().st_size}
        partial = self._base.with_suffix(".part")
        partial.write_text(json.dumps(note))
        partial.rename(self._base.with_suffix(".json"))


def _finish(copy: _Copy, folder: RunFolder) -> None:
    with contextlib.suppress(OSError, StorageError):
        copy.take_all(to_the_end=True)
        # Uploads an empty log, too, which distinguishes a worker that printed nothing from a lost log.
        folder.storage.upload_file(copy.log, copy.key)
        copy.remove()


def _sources_of_this_process() -> list[TailedFile]:
    """Returns the files of stdout and stderr, from their current ends; empty if they are not files, as in a shell."""
    sources = []
    for descriptor in (1, 2):
        status = os.fstat(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}")
        if stat.S_ISREG(status.st_mode) and path.exists():
            sources.append(TailedFile(str(path.readlink()), status.st_size))
    return sources


def _local_name(folder: RunFolder) -> str:
    return hashlib.sha256(folder.url.encode()).hexdigest()[:16]
