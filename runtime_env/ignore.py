"""Which files are left out of the package: Ray's rules for .gitignore and .rayignore, the user's patterns, and ours."""

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from runtime_env.credentials import file_looks_secret, folder_looks_secret
from trainers.errors import ConfigError

IGNORE_FILES = (".gitignore", ".rayignore")
# Ray's own (RAY_RUNTIME_ENV_DEFAULT_EXCLUDES), and the folder of runs at the root.
ALWAYS = (".git", ".venv", "venv", "__pycache__", "/runs")

BY_ALWAYS = "never packaged"
BY_EXCLUDES = "job.runtime_env.excludes"
BY_SECRECY = "looks like a secret: name it under job.runtime_env.secrets instead"


@dataclass(frozen=True)
class Rules:
    """Patterns from one place, which hold for everything below a folder.

    Attributes:
        base: That folder, absolute.
        may_readmit: Whether one of them, with !, includes again what another leaves out.
    """

    base: str
    spec: Any
    reason: str
    may_readmit: bool

    def leave_out(self, path: str) -> bool:
        """Whether a path, absolute, is left out. A folder's path may end with /."""
        relative = path[len(self.base) :].lstrip("/") or "."
        return bool(self.spec.match_file(relative))


def root_rules(root: Path, excludes: Sequence[str]) -> list[Rules]:
    """The rules that hold everywhere; ConfigError where a pattern of the user is none."""
    try:
        return [_rules(root, ALWAYS, BY_ALWAYS), _rules(root, excludes, BY_EXCLUDES)]
    except ValueError as error:
        raise ConfigError(f"{BY_EXCLUDES}: {error}; write patterns as in .gitignore") from None


def rules_in(folder: Path, root: Path) -> list[Rules]:
    """The rules of the ignore files that lie in a folder; ConfigError where one cannot be read."""
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
    """Why a path is left out. None: it is not, as far as patterns and its name tell."""
    looks_secret = folder_looks_secret if is_folder else file_looks_secret
    if looks_secret(path.rpartition("/")[2]):
        return BY_SECRECY
    for one in rules:
        if one.leave_out(path):
            return one.reason
    # `data/` matches what is in the folder, not the folder: Ray walks through it all. Where no pattern readmits
    # anything, there is nothing to find in it.
    if is_folder and not any(one.may_readmit for one in rules):
        return next((one.reason for one in rules if one.leave_out(f"{path}/")), None)
    return None


def _rules(base: Path, lines: Sequence[str], reason: str) -> Rules:
    spec = _pathspec().PathSpec.from_lines("gitwildmatch", lines)
    return Rules(str(base), spec, reason, any(line.lstrip().startswith("!") for line in lines))


@cache
def _pathspec() -> ModuleType:
    """The very matcher that Ray uses, so that the two never differ: other versions read some patterns in other ways.

    It is loaded from Ray's folder without Ray itself, which takes a second that a client has no other need for.
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
