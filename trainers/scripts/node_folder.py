"""The folders of a program on a node. Each worker group gets its own copy of the package, without others' output."""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainers.config.schema import ScriptConfig
from trainers.errors import StorageError
from trainers.run_folder.layout import RunFolder
from trainers.scripts.backend import GroupMember
from trainers.storage.own_folder import locked, own_temporary_folder

# Names of our temporary folders: of groups, and of inputs, which stay for later groups.
PURPOSE, INPUTS = "scripts", "inputs"
# Extension of the lock file next to a folder; the folder's keeper holds the lock while its process lives.
HELD = ".held"
# Maximum size of a text that may list files.
_MOST_TEXT_BYTES = 256 << 20
_PATH_OF_NODE = re.compile(
    rb"""/[^\s"',:;=]*/rayscribe-(?:(?P<group>scripts)-\d+/[0-9a-f]{16}-a\d+-\w+-\w+|(?P<inputs>inputs)-\d+)(?=/)"""
)
# Ray's folder of unpacked working directories.
UNPACKED = "working_dir_files"
# Extensions of texts that may list files.
SUFFIXES = (".csv", ".json", ".jsonl", ".list", ".lst", ".scp", ".tsv", ".txt", ".yaml", ".yml")


@dataclass(frozen=True)
class ScriptTask:
    """A run of a program, as passed to each worker.

    Attributes:
        folder: Folder in which the program runs on each node; None if the program was submitted, so that each node
            copies the package.
        package: Id of the program's files, to which data that is prepared once belongs.
    """

    config: ScriptConfig
    attempt: int
    folder: Path | None
    package: str


@dataclass(frozen=True)
class NodeFolder:
    """The folders of a worker group on one node; all of its ranks there compute the same paths.

    Attributes:
        own: Folder that is created for the group and removed when the group has ended.
        work: Working directory of the program.
        copied_from: The package of whose copy `work` is a part; None if the program runs in the user's folder.
    """

    own: Path
    work: Path
    copied_from: Path | None
    working_dir: str | None

    @classmethod
    def of(
        cls, task: ScriptTask, folder: RunFolder, member: GroupMember, environment: Mapping[str, str]
    ) -> "NodeFolder":
        """Returns the folders of a member; `environment` is that of its worker, as set by Ray."""
        run = hashlib.sha256(folder.url.encode()).hexdigest()[:16]
        node = member.nodes[member.context.rank][:12]
        own = own_temporary_folder(PURPOSE) / f"{run}-a{task.attempt}-{member.group}-{node}"
        below = task.config.script.working_dir
        package = task.folder or own / "package"
        copied_from = _unpacked_package(environment) if task.folder is None else None
        return cls(own, (package / (below or ".")).resolve(), copied_from, below)

    @property
    def data(self) -> Path:
        """Folder of the data that was prepared once for all nodes."""
        return self.own / "data"

    @property
    def requests(self) -> Path:
        """Folder for requests of the main process's program to share its files with other nodes."""
        return self.own / "requests"

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Creates the folders, and removes them at the end; first removes the folders of killed keepers.

        Raises:
            StorageError: the disk fails, or the working directory does not exist.
        """
        folders = own_temporary_folder(PURPOSE)
        with contextlib.ExitStack() as held:
            with locked(folders / PURPOSE):
                _remove_abandoned(folders)
                lock = held.enter_context(_lock_of(self.own).open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._make()
                yield
            finally:
                shutil.rmtree(self.own, ignore_errors=True)
                _lock_of(self.own).unlink(missing_ok=True)

    def _make(self) -> None:
        try:
            self.own.mkdir(parents=True, exist_ok=True)
            if self.copied_from is not None:
                shutil.copytree(self.copied_from, self.own / "package", symlinks=True)
        except OSError as error:
            reason = f"{error.strerror or error}; check its free space and permissions"
            raise StorageError(f"{self.own}: {self.copied_from} cannot be copied there: {reason}") from error
        if self.work.is_dir():
            return
        if self.working_dir is not None:
            raise StorageError(f"script.working_dir: {self.work} is not a folder on this node: name one of the package")
        raise StorageError(
            f"{self.work} is not on this node. Without --submit, the program runs in that folder on every node: start "
            "it in a folder that all nodes have, or add --submit, which brings the folder along"
        )

    def localize(self, file: Path) -> None:
        """Replaces paths of another node or an earlier group in a text file by this group's folders on this node.

        Many programs write absolute paths into their manifests.
        """
        if file.stat().st_size <= _MOST_TEXT_BYTES:
            own, inputs = str(self.own).encode(), str(own_temporary_folder(INPUTS)).encode()
            replace_paths(file, _PATH_OF_NODE, lambda match: own if match["group"] else inputs)

    def note_end(self, local_rank: int, *, well: bool) -> None:
        """Tells the keeper of this node that the program of a rank has ended, and whether it ended well."""
        with contextlib.suppress(FileNotFoundError):
            for name in (*(["well"] if well else []), "ended"):
                (self.own / f"{name}-{local_rank}").touch()

    def have_all(self, name: str, local_world_size: int) -> bool:
        """Returns True if the programs of all ranks of this node have `ended`, or ended `well` (exit code 0)."""
        return all((self.own / f"{name}-{rank}").exists() for rank in range(local_world_size))


def _lock_of(own: Path) -> Path:
    return own.with_name(f"{own.name}{HELD}")


def _remove_abandoned(folders: Path) -> None:
    """Removes the folders whose keepers are dead; the caller holds the lock of `folders`."""
    for path in folders.glob(f"*{HELD}"):
        with path.open("w") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.with_name(path.name.removesuffix(HELD)), ignore_errors=True)
            path.unlink(missing_ok=True)


def _unpacked_package(environment: Mapping[str, str]) -> Path:
    """Returns the job's working directory as unpacked by Ray; Ray Train changes to another before a worker begins."""
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    found = next((Path(path) for path in paths if UNPACKED in Path(path).parts), None)
    if found is None:
        raise StorageError("the job's working directory is not on this node: Ray has not put it into PYTHONPATH")
    return found


def replace_paths(file: Path, paths: re.Pattern[bytes], here: Callable[[re.Match[bytes]], bytes]) -> None:
    """Replaces matches of `paths` in a text by their paths on this node; other files stay unchanged."""
    if file.suffix.lower() not in SUFFIXES:
        return
    content = file.read_bytes()
    changed = paths.sub(here, content)
    if changed != content:
        file.write_bytes(changed)
