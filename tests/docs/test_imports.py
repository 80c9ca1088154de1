"""What the pages' Python imports from the project is there under that name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_architecture import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
# What other distributions import, and scripts in the repository itself.
OWN = ("rayscribe", "trainers", "jobs", "runtime_env", "cluster_configs")


def imported(block: str) -> Iterator[tuple[str, str]]:
    """Modules and names of them."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OWN:
            for alias in node.names:
                yield node.module.removeprefix("rayscribe."), alias.name


def names_of(module: str) -> set[str]:
    """The names that a module's top level binds, and the modules of a package."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = {each.stem for each in path.iterdir()} if path.is_dir() else set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found |= {
                each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            }
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_import_of_a_page_is_there(page: Path) -> None:
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    for module, name in (each for block in blocks for each in imported(block)):
        assert name in names_of(module), f"from {module} import {name}"


def test_the_pages_import_something() -> None:
    blocks = (block for page in PAGES for block in BLOCK.findall(page.read_text(encoding="utf-8")))
    assert len([each for block in blocks for each in imported(block)]) > 20
