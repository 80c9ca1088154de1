"""Compares the imports of the pages' Python with what the modules of the project define."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from symtable import symtable

import pytest

from tests.docs.page_commands import IDS, PAGES
from tests.test_architecture import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
# What other distributions import, and scripts in the repository itself.
OWN = ("rayscribe", "trainers", "jobs", "runtime_env", "cluster_configs")


def imported(page: Path) -> Iterator[tuple[str, str]]:
    """Yields each module of the project that a page's Python imports from, with a name."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OWN:
                for alias in node.names:
                    yield node.module.removeprefix("rayscribe."), alias.name


def names_of(module: str) -> set[str]:
    """Returns the names that can be imported from a module: those of its top level, and the modules of a package."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    submodules = {each.stem for each in path.iterdir()} if path.is_dir() else set()
    symbols = symtable(file.read_text(encoding="utf-8"), str(file), "exec").get_symbols()
    return submodules | {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_each_import_of_a_page_is_there(page: Path) -> None:
    for module, name in imported(page):
        assert name in names_of(module), f"from {module} import {name}"


def test_the_pages_import_something() -> None:
    assert sum(1 for page in PAGES for _ in imported(page)) > 20
