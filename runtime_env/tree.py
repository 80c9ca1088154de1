"""The working directory: its root, the files to package, and files that are left out, with the reason."""

import importlib.util
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from runtime_env.credentials import file_looks_secret, folder_looks_secret
from trainers.errors import ConfigError

ENTRY = "task.py"
A_LINK_OUT = "a link that leaves the working directory"
A_LINK_UP = "a link to a folder that contains it"
A_LINK_TO_NOTHING = "a broken link"
A_LINK_TO_SECRET = "a link to a file that looks like a secret, or is never packaged"
NO_PLAIN_FILE = "neither a file nor a folder"
NO_PORTABLE_NAME = "a name that no node could unpack"
IGNORE_FILES = (".gitignore", ".rayignore")
# Ray's own (RAY_RUNTIME_ENV_DEFAULT_EXCLUDES), and the folder of runs at the root.
ALWAYS = (".git", ".venv", "venv", "__pycache__", "/runs")
BY_ALWAYS = "never packaged"
BY_EXCLUDES = "job.runtime_env.excludes"
BY_SECRECY = "looks like a secret: name it under job.runtime_env.secrets instead"


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A file to package."""

    path: str
    size_bytes: int
    executable: bool


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file, or a complete folder (ends with /), that is left out, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True)
class Tree:
    """The packaged and left-out files of a working directory."""

    root: Path
    files: tuple[TreeFile, ...]
    left_out: tuple[LeftOut, ...]


def find_root(start: Path) -> Path:
    """Returns the nearest folder with a task.py, from `start` upwards, e.g. the repository; otherwise `start`."""
    here = start.resolve()
    if not here.is_dir():
        raise ConfigError(f"job.runtime_env.working_dir: {here}: no such folder; give one, or leave it out")
    return next((folder for folder in (here, *here.parents) if (folder / ENTRY).is_file()), here)


def list_tree(root: Path, excludes: Sequence[str]) -> Tree:
    """Lists the files to package and those left out; raises like `root_rules` and `rules_in`."""
    root = root.resolve()
    walk = _Walk(root, [], [])
    walk.enter(root, root_rules(root, excludes), (root,))
    return Tree(root, tuple(sorted(walk.files, key=lambda file: file.path.encode())), tuple(walk.left_out))


def unreadable(error: OSError) -> ConfigError:
    """Returns the error for a file that cannot be read for the package."""
    return ConfigError(f"{error.filename}: {error.strerror}; fix it, or leave it out by job.runtime_env.excludes")


@dataclass(frozen=True)
class Rules:
    """Patterns from one source, which apply to everything below `base`, an absolute folder.

    `may_readmit` is True if a pattern with ! may include files again that another leaves out.
    """

    base: str
    spec: Any
    reason: str
    may_readmit: bool

    def leave_out(self, path: str) -> bool:
        """Returns True if an absolute path is left out. A folder's path may end with /."""
        relative = path[len(self.base) :].lstrip("/") or "."
        return bool(self.spec.match_file(relative))


def root_rules(root: Path, excludes: Sequence[str]) -> list[Rules]:
    """Returns the rules for the complete tree; raises ConfigError if a user's pattern is not valid."""
    try:
        return [_rules(root, ALWAYS, BY_ALWAYS), _rules(root, excludes, BY_EXCLUDES)]
    except ValueError as error:
        raise ConfigError(f"{BY_EXCLUDES}: {error}; write patterns as in .gitignore") from None


def rules_in(folder: Path, root: Path) -> list[Rules]:
    """Returns the rules of the ignore files in a folder; raises ConfigError if one cannot be read."""
    found = []
    for name in IGNORE_FILES:
        file = folder / name
        if file.is_file():
            try:
                with file.open(encoding="utf-8") as text:
                    found.append(_rules(folder, text.readlines(), file.relative_to(root).as_posix()))
            except (OSError, ValueError) as error:
                raise ConfigError(f"{file} cannot be read: {error}; fix or remove it") from None
    return found


def why_left_out(path: str, rules: Sequence[Rules], *, is_folder: bool) -> str | None:
    """Returns why a path is left out, by patterns and its name; None if it is not."""
    looks_secret = folder_looks_secret if is_folder else file_looks_secret
    if looks_secret(path.rpartition("/")[2]):
        return BY_SECRECY
    for one in rules:
        if one.leave_out(path):
            return one.reason
    # `data/` matches the content of the folder, but not the folder itself, so Ray walks through all of it. This is not
    # needed if no pattern readmits anything.
    if is_folder and not any(one.may_readmit for one in rules):
        return next((one.reason for one in rules if one.leave_out(f"{path}/")), None)
    return None


def _rules(base: Path, lines: Sequence[str], reason: str) -> Rules:
    spec = _pathspec().PathSpec.from_lines("gitwildmatch", lines)
    return Rules(str(base), spec, reason, any(line.lstrip().startswith("!") for line in lines))


@cache
def _pathspec() -> ModuleType:
    """Imports Ray's own copy of pathspec, since other versions interpret some patterns differently.

    Does not import Ray itself, which would take a second.
    """
    ray = importlib.util.find_spec("ray")
    assert ray is not None and ray.submodule_search_locations
    folder = Path(ray.submodule_search_locations[0], "_private", "thirdparty", "pathspec")
    spec = importlib.util.spec_from_file_location(
        "_ray_pathspec", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class _Walk:
    """A walk through a working directory, following links within it."""

    root: Path
    files: list[TreeFile]
    left_out: list[LeftOut]

    def enter(self, folder: Path, rules: Sequence[Rules], above: tuple[Path, ...]) -> None:
        """Adds a folder's files by paths as reached; `above` has its real path and those of its parents.

        The folder may be left out by its own ignore file.
        """
        files_before, left_out_before = len(self.files), len(self.left_out)
        rules = [*rules, *rules_in(folder, self.root)]
        if folder != self.root:
            reason = why_left_out(str(folder), rules, is_folder=True)
        else:
            # A pattern such as * matches the root itself, which Ray then leaves out completely.
            reason = next((one.reason for one in rules if one.leave_out(str(self.root))), None)
        if reason is not None:
            self._leave(folder, reason, is_folder=True)
            return
        for entry in _entries(folder):
            self._take(folder / entry.name, entry, rules, above)
        reasons = {item.reason for item in self.left_out[left_out_before:]}
        if len(self.files) == files_before and len(reasons) == 1 and folder != self.root:
            # One entry for a folder without packaged files, instead of one for each file.
            del self.left_out[left_out_before:]
            self._leave(folder, reasons.pop(), is_folder=True)

    def _take(self, path: Path, entry: "os.DirEntry[str]", rules: Sequence[Rules], above: tuple[Path, ...]) -> None:
        real = path
        if entry.is_symlink():
            target = self._followed(path, above)
            if isinstance(target, str):
                self._leave(path, target, is_folder=False)
                return
            real = target
        if not _is_portable(path.relative_to(self.root).as_posix()):
            self._leave(path, NO_PORTABLE_NAME, is_folder=False)
        elif real.is_dir():
            self.enter(path, rules, (*above, real.resolve()))
        elif reason := why_left_out(str(path), rules, is_folder=False):
            self._leave(path, reason, is_folder=False)
        elif not real.is_file():
            self._leave(path, NO_PLAIN_FILE, is_folder=False)
        else:
            status = real.stat()
            relative = path.relative_to(self.root).as_posix()
            self.files.append(TreeFile(relative, status.st_size, bool(status.st_mode & stat.S_IXUSR)))

    def _followed(self, path: Path, above: tuple[Path, ...]) -> Path | str:
        """Returns the target of a link, or why the link is not followed."""
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError):
            return A_LINK_TO_NOTHING
        if not real.is_relative_to(self.root):
            return A_LINK_OUT
        if real in above:
            return A_LINK_UP
        folders = real.relative_to(self.root).parts[:-1]
        always = root_rules(self.root, ())[0]
        looks_secret = file_looks_secret(real.name) or any(map(folder_looks_secret, [*folders, real.name]))
        return A_LINK_TO_SECRET if looks_secret or always.leave_out(str(real)) else real

    def _leave(self, path: Path, reason: str, *, is_folder: bool) -> None:
        # A name may not be valid text, so invalid bytes are replaced.
        relative = os.fsencode(path.relative_to(self.root)).decode(errors="replace")
        self.left_out.append(LeftOut(f"{relative}/" if is_folder else relative, reason))


def _entries(folder: Path) -> Iterator["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as found:
            yield from sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise unreadable(error) from None


def _is_portable(path: str) -> bool:
    """Returns True if Ray unpacks a file of this name, which must be UTF-8, without backslashes and drive letters."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return "\\" not in path and path[1:2] != ":"
