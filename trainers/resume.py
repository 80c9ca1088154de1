"""Where a worker group starts: from its newest whole checkpoint, wherever a killed one left it."""

import fcntl
import hashlib
import shutil
import tempfile
import time
import uuid
from dataclasses import dataclass
from os import getuid
from pathlib import Path
from typing import TextIO

from trainers.checkpoints import (
    MANIFEST,
    Checkpoint,
    bring_home,
    fetch,
    list_checkpoints,
    list_staged,
    newest,
    set_aside,
)
from trainers.config import RunPart, is_absolute
from trainers.errors import DamagedError, ResumeError
from trainers.session import Session
from trainers.storage import Storage, open_storage

FROM = "from:"
LOCK = ".lock"
# How long a killed group may take to be gone.
DYING_S = 60.0


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
    def open(cls, run_id: str, session: Session) -> "Staging":
        """Names the folders; every rank calls it.

        Args:
            run_id: Unique name of the run, so that a run of the same name in the same place finds nothing of it.
            session: The ranks.
        """
        group = session.from_leader(lambda: uuid.uuid4().hex[:6])
        key = hashlib.sha256(run_id.encode()).hexdigest()[:16]
        root = Path(tempfile.gettempdir()) / f"rayscribe-staging-{getuid()}" / key
        (root / group).mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = None
        if session.local_rank == 0:
            lock = (root / f"{group}{LOCK}").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
        session.barrier()
        return cls(root, group, lock)

    @property
    def folder(self) -> Path:
        """This worker group's own folder."""
        return self.root / self.group

    def others(self) -> list[Path]:
        """Folders that earlier worker groups left.

        Raises:
            ResumeError: one of these groups is alive, so that two would train the same run.
        """
        folders = [path for path in sorted(self.root.iterdir()) if path.is_dir() and path.name != self.group]
        end = time.monotonic() + DYING_S
        for folder in folders:
            while not _is_free(folder.with_name(f"{folder.name}{LOCK}")):
                if time.monotonic() > end:
                    raise ResumeError(
                        f"{folder}: another attempt of this run trains on this node; wait for its end, or stop it"
                    )
                time.sleep(0.2)
        return folders

    def remove(self) -> None:
        """Frees the node's disk after the run's end."""
        shutil.rmtree(self.root, ignore_errors=True)


def recover_staged(staging: Staging, checkpoints: Storage, session: Session) -> None:
    """Brings home the newest checkpoint that a killed worker left whole on its node, if it is ahead of all others.

    Every rank calls it; the first of each node looks.
    """
    mine = session.local_rank == 0
    others = staging.others() if mine else []
    waiting = [(item.step, path) for path in others for item in list_staged(path)]
    best = max((step for step, _ in waiting), default=-1)
    ahead = session.gather(best)
    home = session.from_leader(lambda: max((item.step for item in list_checkpoints(checkpoints)), default=-1))
    if max(ahead) > home and ahead.index(max(ahead)) == session.rank:
        for path in others:
            for item in list_staged(path):
                if item.step == best:
                    bring_home(path / item.name, checkpoints)
    session.barrier()
    for path in others:
        shutil.rmtree(path, ignore_errors=True)
        path.with_name(f"{path.name}{LOCK}").unlink(missing_ok=True)


def starting_point(
    run: RunPart, staging: Staging, checkpoints: Storage, session: Session
) -> tuple[Checkpoint, Path] | None:
    """Fetches the checkpoint to start from to every node. Every rank calls it.

    Args:
        run: The config's run part.
        staging: Where to put it.
        checkpoints: The run's checkpoints.
        session: The ranks.

    Returns:
        The checkpoint and its local folder; None to start from nothing.

    Raises:
        ResumeError: a checkpoint was named and is not whole.
    """
    local = staging.folder / "resume"

    def choose() -> tuple[Storage, Checkpoint] | None:
        own = list_checkpoints(checkpoints)
        found = len(own)
        while own:
            name = newest(own)
            assert name is not None
            try:
                return checkpoints, fetch(checkpoints, name, local)
            except DamagedError as error:
                session.say(f"{error}; trying the one before")
                shutil.rmtree(local, ignore_errors=True)
                set_aside(checkpoints, name)
                own = [item for item in own if item.name != name]
        if found:
            raise ResumeError(
                f"{checkpoints.url()}: none of {found} checkpoints is whole; name another run to begin anew"
            )
        if run.resume.startswith(FROM):
            storage, name = named_checkpoint(run.resume.removeprefix(FROM), run.s3_endpoint_url)
            return storage, fetch(storage, name, local)
        return None

    chosen: tuple[Storage, Checkpoint] | None = session.from_leader(choose)
    if chosen is None:
        return None
    storage, checkpoint = chosen
    if session.local_rank == 0 and not session.leads:
        fetch(storage, checkpoint.name, local)
    session.barrier()
    return checkpoint, local


def named_checkpoint(text: str, s3_endpoint_url: str | None) -> tuple[Storage, str]:
    """The folder and name of the checkpoint that `run.resume: from:<text>` gives.

    Raises:
        ResumeError: it is no absolute folder or URL, or holds no whole checkpoint.
    """
    if not is_absolute(text):
        raise ResumeError(f"run.resume: from:{text}: give the absolute folder or s3:// URL of a checkpoint")
    parent, _, name = text.rstrip("/").rpartition("/")
    storage = open_storage(parent, s3_endpoint_url=s3_endpoint_url)
    if not storage.exists(f"{name}/{MANIFEST}"):
        raise ResumeError(f"run.resume: from:{text}: no {MANIFEST} is there, so it is no whole checkpoint")
    return storage, name


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
