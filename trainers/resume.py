"""Where a worker group starts: from its newest whole checkpoint, wherever a killed one left it."""

import hashlib
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from os import getuid
from pathlib import Path

from trainers.checkpoints import Checkpoint, bring_home, fetch, list_checkpoints, list_staged, newest
from trainers.config import S3_SCHEME, RunPart
from trainers.errors import ResumeError
from trainers.session import Session
from trainers.storage import Storage, open_storage

FROM = "from:"


@dataclass(frozen=True)
class Staging:
    """A worker group's folder on the node's own disk.

    Attributes:
        root: Folder of all worker groups of this run on this node.
        group: Name of this worker group, the same on all its nodes.
    """

    root: Path
    group: str

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
        return cls(root, group)

    @property
    def folder(self) -> Path:
        """This worker group's own folder."""
        return self.root / self.group

    def others(self) -> list[Path]:
        """Folders that earlier worker groups left."""
        return [path for path in sorted(self.root.iterdir()) if path.is_dir() and path.name != self.group]


def recover_staged(staging: Staging, checkpoints: Storage, session: Session) -> None:
    """Brings home the newest checkpoint that a killed worker left whole on its node, if it is ahead of all others.

    Every rank calls it; the first of each node looks.
    """
    mine = session.local_rank == 0
    waiting = [(item.step, path) for path in staging.others() for item in list_staged(path)] if mine else []
    best = max((step for step, _ in waiting), default=-1)
    ahead = session.gather(best)
    home = session.from_leader(lambda: max((item.step for item in list_checkpoints(checkpoints)), default=-1))
    if max(ahead) > home and ahead.index(max(ahead)) == session.rank:
        for path in staging.others():
            for item in list_staged(path):
                if item.step == best:
                    bring_home(path / item.name, checkpoints)
    session.barrier()
    if mine:
        for path in staging.others():
            shutil.rmtree(path, ignore_errors=True)


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
        while own:
            name = newest(own)
            assert name is not None
            try:
                return checkpoints, fetch(checkpoints, name, local)
            except ResumeError as error:
                session.say(f"{error}; trying the one before")
                shutil.rmtree(local, ignore_errors=True)
                own = [item for item in own if item.name != name]
        if run.resume.startswith(FROM):
            storage, name = named_checkpoint(run.resume.removeprefix(FROM), checkpoints, run.s3_endpoint_url)
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


def named_checkpoint(text: str, checkpoints: Storage, s3_endpoint_url: str | None) -> tuple[Storage, str]:
    """The folder and name of a checkpoint given by URL, folder, or name in this run.

    Raises:
        ResumeError: the text names none.
    """
    if text.startswith(S3_SCHEME) or Path(text).is_absolute():
        parent, _, name = text.rstrip("/").rpartition("/")
        return open_storage(parent, s3_endpoint_url=s3_endpoint_url), name
    names = [item.name for item in list_checkpoints(checkpoints)]
    if text in names:
        return checkpoints, text
    raise ResumeError(
        f"run.resume: {text} is no checkpoint of this run ({', '.join(names) or 'it has none'}); "
        "give an absolute folder or s3:// URL"
    )
