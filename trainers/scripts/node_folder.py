"""Where a program runs on a node: a copy of the package for each worker group, so that nothing of another is in it."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainers.errors import StorageError
from trainers.run_folder.layout import RunFolder
from trainers.scripts.backend import GroupMember
from trainers.scripts.script_task import ScriptTask
from trainers.storage.own_folder import own_temporary_folder

PURPOSE = "scripts"
# Ray's folder of unpacked working directories.
UNPACKED = "working_dir_files"


@dataclass(frozen=True)
class NodeFolder:
    """The folders of a worker group on one node; all of its ranks there compute the same paths.

    Attributes:
        own: Made for the group, and removed when it has ended.
        work: Where the program runs.
        copied_from: The package of which `work` is in a copy. None: the program runs where it lies.
    """

    own: Path
    work: Path
    copied_from: Path | None

    @classmethod
    def of(
        cls, task: ScriptTask, folder: RunFolder, member: GroupMember, environment: Mapping[str, str]
    ) -> "NodeFolder":
        """The folders of a member, by the environment that Ray has given its worker."""
        run = _name_of(folder)
        own = own_temporary_folder(PURPOSE) / f"{run}-a{task.attempt}-{member.group}-{_node_of(member)}"
        below = task.config.script.working_dir or "."
        if task.folder is not None:
            return cls(own, (task.folder / below).resolve(), None)
        return cls(own, (own / "package" / below).resolve(), _unpacked_package(environment))

    @property
    def data(self) -> Path:
        """What was prepared once for all nodes."""
        return self.own / "data"

    def make(self, folder: RunFolder, member: GroupMember) -> None:
        """Makes the folders, and removes those of earlier groups of the run on this node, whose programs have ended.

        Raises:
            StorageError: the disk refuses.
        """
        with contextlib.suppress(OSError):
            for other in own_temporary_folder(PURPOSE).glob(f"{_name_of(folder)}-a*-{_node_of(member)}"):
                shutil.rmtree(other, ignore_errors=True)
        try:
            self.own.mkdir(parents=True, exist_ok=True)
            if self.copied_from is not None:
                shutil.copytree(self.copied_from, self.own / "package", symlinks=True)
        except (OSError, shutil.Error) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
            raise StorageError(f"{self.own}: the package cannot be copied there: {reason}; free some space") from error
        if not self.work.is_dir():
            raise StorageError(f"script.working_dir: {self.work} is not a folder of the package: name one that is")

    def note_end(self, local_rank: int, *, well: bool) -> None:
        """Says to the keeper of this node that the program of a rank has ended, and whether with exit code 0."""
        with contextlib.suppress(FileNotFoundError):
            for name in (*(["well"] if well else []), "ended"):
                (self.own / f"{name}-{local_rank}").touch()

    def have_all(self, name: str, local_world_size: int) -> bool:
        """Whether the programs of all ranks of this node have `ended`, or ended `well`."""
        return all((self.own / f"{name}-{rank}").exists() for rank in range(local_world_size))

    def remove(self) -> None:
        shutil.rmtree(self.own, ignore_errors=True)


def _unpacked_package(environment: Mapping[str, str]) -> Path:
    """Where Ray has unpacked the job's working directory on this node; Ray Train leaves it before a worker begins."""
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    found = next((Path(path) for path in paths if UNPACKED in Path(path).parts), None)
    if found is None:
        raise StorageError("the job's working directory is not on this node: Ray has not put it into PYTHONPATH")
    return found


def _name_of(folder: RunFolder) -> str:
    return hashlib.sha256(folder.url.encode()).hexdigest()[:16]


def _node_of(member: GroupMember) -> str:
    return member.nodes[member.context.rank][:12]
