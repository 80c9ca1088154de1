"""Builds the wheel, in which the packages of the repository are inside one package: `jobs` is `rayscribe.jobs`.

Names as general as `jobs` and `trainers` could conflict with a user's own modules. In the repository, for
`python task.py`, and in an editable installation, they do not change. All other settings are in pyproject.toml.
"""

import ast
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

NAME = "rayscribe"
PACKAGES = ("cluster_configs", "jobs", "runtime_env", "trainers")


class BuildBelowOneName(build_py):
    """Moves the packages that setuptools has collected into `rayscribe`, and adapts their imports."""

    def run(self) -> None:
        """Collects and moves the packages; moves nothing for an editable installation."""
        if self.editable_mode:
            super().run()
            return
        library = Path(self.build_lib)
        target = library / NAME
        # From an earlier build.
        shutil.rmtree(target, ignore_errors=True)
        super().run()
        target.mkdir()
        for package in PACKAGES:
            (library / package).rename(target / package)
        (library / f"{NAME}.py").rename(target / "__init__.py")
        (library / "task.py").unlink()
        (target / "py.typed").touch()
        for path in target.rglob("*.py"):
            path.write_text(below_one_name(path.read_text(encoding="utf-8")), encoding="utf-8")


class EggInfoOfOneName(egg_info):
    """Writes metadata with the one top-level module of the wheel."""

    def run(self) -> None:
        """Writes the metadata."""
        super().run()
        Path(self.egg_info, "top_level.txt").write_text(f"{NAME}\n", encoding="utf-8")


def below_one_name(source: str) -> str:
    """Returns a module's source with imports of the packages from `rayscribe`; all other bytes are unchanged."""
    lines = source.encode().splitlines(keepends=True)
    places: list[tuple[int, int]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module):
            places.append((node.lineno - 1, node.col_offset + len("from ")))
        elif isinstance(node, ast.Import):
            for each in filter(lambda each: _is_ours(each.name), node.names):
                if each.asname is None:
                    raise SyntaxError(f"line {node.lineno}: write `from … import …` for import {each.name}")
                places.append((each.lineno - 1, each.col_offset))
    for line, column in sorted(places, reverse=True):
        lines[line] = lines[line][:column] + f"{NAME}.".encode() + lines[line][column:]
    return b"".join(lines).decode()


def _is_ours(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in PACKAGES


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildBelowOneName, "egg_info": EggInfoOfOneName})
