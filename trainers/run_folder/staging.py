"""Staging folders on a node's own disk, in which a worker group completes checkpoints before they are uploaded.

A node may have the folders of the current group, and of killed groups whose complete checkpoints the next group
uploads. The first rank of each node holds a lock on its group's folder while its process lives.
"""

import contextlib
import fcntl
import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from trainers.errors import ResumeError, StorageError
from trainers.run_folder.journal import Checkpoint
from trainers.run_folder.layout import now
from trainers.storage.own_folder import own_temporary_folder

if TYPE_CHECKING:
    # Imports torch, which the service, a reader of checkpoints, does not need.
    from trainers.distributed.session import Session

STAGED = "STAGED.json"
LOCK = ".lock"
# File in a worker group's folder with the URL of the run folder.
RUN = "RUN"
POLL_S = 0.2
# Timeout for a killed group to end; after it, the group counts as alive.
KILLED_GROUP_TIMEOUT_S = 60.0
# Timeout for a group that is fenced: if it is still alive, only its staged checkpoints are left behind.
FENCED_GROUP_TIMEOUT_S = 10.0
# Timeout for creating a lock that another process holds.
LOCK_TIMEOUT_S = 10.0
_OWN_FOLDER = "give each node a temporary folder of its own (TMPDIR)"


@dataclass(frozen=True)
class Staging:
    """A worker group's folder on the node's own disk, in `root`, which has the folders of all groups of the run here.

    The group has one name on all its nodes, which may share `root`. The first rank of each node holds the lock while it
    lives.
    """

    root: Path
    group: str
    node: str
    lock: TextIO | None = None

    @classmethod
    def open(cls, run_id: str, session: "Session", group: str | None = None) -> "Staging":
        """Creates and locks the folder of a worker group, by default a new group's. Every rank calls this."""
        group = group or session.broadcast(lambda: uuid.uuid4().hex[:8], "naming the worker group")
        root, lock = _root_of(run_id), None
        if session.local_rank == 0:
            # Locked before the folder exists, so that the folder of a living group is never found without a lock.
            folder = root / f"{group}-{session.node}"
            lock = _new_lock(_lock_of(folder))
            folder.mkdir(mode=0o700)
        session.barrier("opening the staging folders")
        return cls(root, group, session.node, lock)

    def name_run(self, url: str) -> None:
        """Records the run folder of this group's checkpoints, see `staged_checkpoints_of_run`."""
        (self.folder / RUN).write_text(url)

    @property
    def folder(self) -> Path:
        return self.root / f"{self.group}-{self.node}"

    def wait_for_earlier_groups(self, *, managed_by_service: bool, log: Callable[[str], None]) -> list[Path]:
        """Waits for earlier worker groups that are about to end; returns the folders of those that have ended.

        If a service counts the attempts (`managed_by_service`), a group that is still alive is fenced and ignored.

        Raises:
            ResumeError: an earlier group is alive, and no service counts attempts, so two would train the same run.
        """
        others = (path for path in sorted(self.root.iterdir()) if not path.name.startswith(f"{self.group}-"))
        folders = [path for path in others if path.is_dir()]
        if not managed_by_service:
            _wait_for_ends(folders)
            return folders
        end = time.monotonic() + FENCED_GROUP_TIMEOUT_S
        ended = [folder for folder in folders if _ends_before(folder, end)]
        for folder in folders:
            if folder not in ended:
                log(f"{folder}: an older worker group is still alive; its staged checkpoints stay there")
        return ended

    def release(self) -> None:
        if self.lock is not None:
            self.lock.close()

    def remove(self) -> None:
        remove(self.folder)
        # Fails if another living group has a folder there.
        with contextlib.suppress(OSError):
            self.root.rmdir()


def refuse_second_training(run_id: str) -> None:
    """Waits for worker groups of a run on this node that are about to end; raises ResumeError if one does not end."""
    _wait_for_ends(path for path in _root_of(run_id).glob("*") if path.is_dir())


def _wait_for_ends(folders: Iterable[Path]) -> None:
    end = time.monotonic() + KILLED_GROUP_TIMEOUT_S
    for folder in folders:
        if not _ends_before(folder, end):
            raise ResumeError(
                f"{folder}: another attempt of this run trains on this node; wait for its end, or stop it"
            )


def _ends_before(folder: Path, end_s: float) -> bool:
    """Waits for the worker group of a folder to end; returns True if it has ended."""
    while not (is_free := _is_free(_lock_of(folder))) and time.monotonic() < end_s:
        time.sleep(POLL_S)
    return is_free


class NodePart(NamedTuple):
    """The number of a part of a checkpoint, and of all parts. A part has the files that one node's ranks wrote.

    Number 0 is the main process's part, which has all files except the other nodes' shards.
    """

    number: int
    total: int


ONLY_PART = NodePart(0, 1)


class StagedPart(NamedTuple):
    """A complete staged checkpoint, or a node's part; `is_scored` is False if it was saved on a stop request."""

    step: int
    name: str
    part: NodePart
    folder: Path
    is_scored: bool = True


def stage(folder: Path, *, step: int, attempt: int, metrics: dict[str, float], part: NodePart = ONLY_PART) -> None:
    """Marks a staged checkpoint or a node's part, whose files are all written, as complete, with its scores."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != STAGED)
    files = {str(path.relative_to(folder)): {"size_bytes": path.stat().st_size} for path in paths}
    checkpoint = Checkpoint(folder.name, step, attempt, metrics, now(), files)
    partial = folder / f"{STAGED}.part"
    shared = {} if part == ONLY_PART else {"part": part}
    partial.write_text(json.dumps({**asdict(checkpoint), **shared}))
    partial.rename(folder / STAGED)


def read_staged(folder: Path) -> tuple[Checkpoint, NodePart]:
    """Returns the description of a complete staged checkpoint, without SHA-256 sums, and its part on this node."""
    content = json.loads((folder / STAGED).read_text())
    part = NodePart(*content.pop("part", ONLY_PART))
    return Checkpoint(**content), part


def list_staged(folders: Iterable[Path]) -> list[StagedPart]:
    """Returns the complete staged checkpoints and parts in the folders of worker groups."""
    found = []
    for marker in (marker for folder in folders for marker in sorted(folder.glob(f"*/{STAGED}"))):
        path = marker.parent
        try:
            checkpoint, part = read_staged(path)
        except (ValueError, TypeError, AttributeError):  # A node that lost power leaves empty or truncated files.
            continue
        sizes = {path / name: entry["size_bytes"] for name, entry in checkpoint.files.items()}
        if all(file.is_file() and file.stat().st_size == size for file, size in sizes.items()):
            found.append(StagedPart(checkpoint.step, checkpoint.name, part, path, bool(checkpoint.metrics)))
    return found


def staged_checkpoints_of_run(url: str) -> Iterator[Path]:
    """Yields complete checkpoints of a run folder that killed worker groups left staged on this node."""
    for run in own_temporary_folder("staging").glob(f"*/*/{RUN}"):
        if run.read_text() == url:
            yield from (item.folder for item in list_staged([run.parent]))


def staged_checkpoints_to_upload(
    checkpoints: Iterable[Checkpoint], parts_of_ranks: Sequence[Sequence[StagedPart]]
) -> list[list[tuple[int, StagedPart]]]:
    """Returns the staged checkpoints that are ahead of a run's, by step, each as its parts with a rank that has them.

    Includes only complete checkpoints, one per step. A checkpoint is also ahead if it has a score, and the run's own
    checkpoint of the step has none. `parts_of_ranks` are the parts that each rank has found on its node.
    """
    found: dict[tuple[int, bool, str], dict[int, tuple[int, StagedPart]]] = {}
    for rank, parts in enumerate(parts_of_ranks):
        for each in parts:
            found.setdefault((each.step, each.is_scored, each.name), {}).setdefault(each.part.number, (rank, each))
    newest = max(((item.step, bool(item.metrics)) for item in checkpoints), default=(-1, False))
    # Of several checkpoints of a step, the last wins, which has a score if any has.
    of_steps = {
        key[0]: [part for _, part in sorted(parts.items())]
        for key, parts in sorted(found.items())
        if key[:2] > newest and len(parts) == next(iter(parts.values()))[1].part.total
    }
    return list(of_steps.values())


def remove(folder: Path) -> None:
    """Deletes the folder of a worker group, and its lock."""
    shutil.rmtree(folder, ignore_errors=True)
    _lock_of(folder).unlink(missing_ok=True)


def _root_of(run_id: str) -> Path:
    return own_temporary_folder("staging") / hashlib.sha256(run_id.encode()).hexdigest()[:16]


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{LOCK}")


def _new_lock(path: Path) -> TextIO:
    end = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Another group may remove the empty folder in between, at its end.
        with contextlib.suppress(FileNotFoundError):
            lock = path.open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                lock.close()
            except OSError as error:
                raise StorageError(f"{path}: cannot be locked: {error.strerror}; {_OWN_FOLDER}") from error
        if time.monotonic() > end:
            raise ResumeError(f"{path}: held by another process of the same worker group; {_OWN_FOLDER}")
        # Another group that checks whether this one is alive holds the lock for a moment.
        time.sleep(POLL_S)


def _is_free(lock: Path) -> bool:
    """Returns True if no living process holds a lock."""
    if not lock.exists():
        return True
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
