"""Where a worker group starts: from its newest whole checkpoint, wherever a killed one left it."""

import contextlib
import fcntl
import hashlib
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from os import getuid
from pathlib import Path
from typing import TextIO

from trainers.config.schema import RunPart, is_absolute
from trainers.distributed.session import Session
from trainers.errors import DamagedError, ResumeError
from trainers.run_folder.checkpoints import (
    MANIFEST,
    Keeping,
    fetch,
    list_staged,
    newest,
    read_manifest,
    set_aside,
    sweep,
    upload_staged,
)
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Checkpoint, Journal
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.storage import Storage, open_storage

FROM = "from:"
LOCK = ".lock"
# How long a killed group may take to be gone, before it is taken for alive.
DYING_S = 60.0
# The same where nothing is lost but a step interval: the group is fenced, and only what it staged is left behind.
FENCED_DYING_S = 10.0


@dataclass(frozen=True)
class Staging:
    """A worker group's folder on the node's own disk.

    Attributes:
        root: Folder of all worker groups of this run on this node.
        group: Name of this worker group, the same on all its nodes.
        lock: Held by the first rank of each node for as long as it lives.
    """

    root: Path
    group: str
    lock: TextIO | None = None

    @classmethod
    def open(cls, run_id: str, session: Session, group: str | None = None) -> "Staging":
        """Names the folders; every rank calls it.

        Args:
            run_id: Unique name of the run, so that a run of the same name in the same place finds nothing of it.
            session: The ranks.
            group: Name of the worker group. None: a new one.
        """
        group = group or session.broadcast(lambda: uuid.uuid4().hex[:8])
        key = hashlib.sha256(run_id.encode()).hexdigest()[:16]
        root = Path(tempfile.gettempdir()) / f"rayscribe-staging-{getuid()}" / key
        lock = None
        if session.local_rank == 0:
            # Before the folder, so that nobody finds the folder of a living group without its lock.
            lock = _new_lock(_lock_of(root / group))
            (root / group).mkdir(mode=0o700)
        session.barrier()
        return cls(root, group, lock)

    @property
    def folder(self) -> Path:
        """This worker group's own folder."""
        return self.root / self.group

    def others(self, *, numbered: bool, say: Callable[[str], None]) -> list[Path]:
        """Folders that earlier worker groups left.

        Args:
            numbered: A service counts the attempts: a group that is still alive is fenced, and left alone.
            say: Told of a group that is left alone.

        Raises:
            ResumeError: one of these groups is alive and was not numbered, so that two would train the same run.
        """
        folders = [path for path in sorted(self.root.iterdir()) if path.is_dir() and path.name != self.group]
        end = time.monotonic() + (FENCED_DYING_S if numbered else DYING_S)
        left = []
        for folder in folders:
            while not (free := _is_free(_lock_of(folder))) and time.monotonic() < end:
                time.sleep(0.2)
            if free:
                left.append(folder)
            elif numbered:
                say(f"{folder}: an older worker group is still alive; what it has staged there is left alone")
            else:
                raise ResumeError(
                    f"{folder}: another attempt of this run trains on this node; wait for its end, or stop it"
                )
        return left

    def release(self) -> None:
        """Says that this group is no more."""
        if self.lock is not None:
            self.lock.close()

    def remove(self) -> None:
        """Frees the node's disk after the group's end."""
        shutil.rmtree(self.folder, ignore_errors=True)
        _lock_of(self.folder).unlink(missing_ok=True)
        # A group that is still alive has its folder there.
        with contextlib.suppress(OSError):
            self.root.rmdir()


def take_over(staging: Staging, writer: GroupWriter, keeping: Keeping, session: Session, *, numbered: bool) -> None:
    """Opens this worker group in the journal, and brings home the newest checkpoint that a killed one left whole.

    Every rank calls it. The first of each node waits for the groups before to be gone, and looks into their staging;
    what they left is brought home if it is ahead of all checkpoints of the run. The leading rank sweeps up behind
    them in the run folder.

    Args:
        staging: This group's folders.
        writer: This group.
        keeping: Which checkpoints stay.
        session: The ranks.
        numbered: See `Staging.others`.

    Raises:
        FencedError: a later attempt has begun; every rank raises it.
        ResumeError: a group is alive on this node, see `Staging.others`.
    """
    others = staging.others(numbered=numbered, say=session.say) if session.local_rank == 0 else []
    waiting = [(item.step, path / item.name) for path in others for item in list_staged(path)]
    best, staged = max(waiting, default=(-1, None))
    ahead = session.gather(best)
    home = session.broadcast(lambda: max((item.step for item in writer.open().checkpoints), default=-1))
    if staged is not None and max(ahead) > home and ahead.index(max(ahead)) == session.rank:
        upload_staged(staged, writer, keeping)
    session.barrier()
    for path in others:
        shutil.rmtree(path, ignore_errors=True)
        _lock_of(path).unlink(missing_ok=True)
    if session.is_main_process:
        sweep(writer)


def starting_point(
    run: RunPart, staging: Staging, writer: GroupWriter, session: Session
) -> tuple[Checkpoint, Path] | None:
    """Fetches the checkpoint to start from to every node. Every rank calls it.

    Args:
        run: The config's run part.
        staging: Where to put it.
        writer: This group.
        session: The ranks.

    Returns:
        The checkpoint and its local folder; None to start from nothing.

    Raises:
        FencedError: another attempt has taken over.
        ResumeError: a checkpoint was named and is not whole.
    """
    local = staging.folder / "resume"
    checkpoints = writer.folder.storage.sub(CHECKPOINTS)

    def choose() -> tuple[Storage, Checkpoint] | None:
        found = len(writer.check().checkpoints)
        while (checkpoint := newest(writer.check().checkpoints)) is not None:
            try:
                fetch(checkpoints, checkpoint, local)
                return checkpoints, checkpoint
            except DamagedError as error:
                session.say(f"{error}; trying the one before")
                shutil.rmtree(local, ignore_errors=True)
                set_aside(writer, checkpoint.name)
        if found:
            raise ResumeError(
                f"{checkpoints.url()}: none of {found} checkpoints is whole; name another run to begin anew"
            )
        if run.resume.startswith(FROM):
            storage, named = named_checkpoint(run.resume.removeprefix(FROM), run.s3_endpoint_url)
            fetch(storage, named, local)
            return storage, named
        return None

    chosen: tuple[Storage, Checkpoint] | None = session.broadcast(choose)
    if chosen is None:
        return None
    storage, checkpoint = chosen
    if session.local_rank == 0 and not session.is_main_process:
        fetch(storage, checkpoint, local)
    session.barrier()
    return checkpoint, local


def named_checkpoint(text: str, s3_endpoint_url: str | None) -> tuple[Storage, Checkpoint]:
    """The checkpoint that `run.resume: from:<text>` gives, and the folder above it.

    Raises:
        ResumeError: it is no absolute folder or URL, or no whole checkpoint, or its run's journal does not name it.
    """
    if not is_absolute(text):
        raise ResumeError(f"run.resume: from:{text}: give the absolute folder or s3:// URL of a checkpoint")
    parent, _, name = text.rstrip("/").rpartition("/")
    storage = open_storage(parent, s3_endpoint_url=s3_endpoint_url)
    if not storage.exists(f"{name}/{MANIFEST}"):
        raise ResumeError(f"run.resume: from:{text}: no {MANIFEST} is there, so it is no whole checkpoint")
    run_url, _, last = parent.rpartition("/")
    if last == CHECKPOINTS:
        state = Journal(RunFolder(open_storage(run_url, s3_endpoint_url=s3_endpoint_url))).read()
        if state.number > 0 and not state.has(name):
            raise ResumeError(
                f"run.resume: from:{text}: the run's journal does not name it: a stale attempt left it, or it was "
                "found damaged; name another checkpoint"
            )
    return storage, read_manifest(storage, name)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{LOCK}")


def _new_lock(path: Path) -> TextIO:
    """Creates a lock file, and holds it."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Another group that ends may remove the empty folder in between.
        with contextlib.suppress(FileNotFoundError):
            lock = path.open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
            return lock


def _is_free(lock: Path) -> bool:
    """Whether no living process holds a lock."""
    if not lock.exists():
        return True
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
