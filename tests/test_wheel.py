"""The wheel has one package, `rayscribe`, with all that the repository has in several."""

import ast
import re
import runpy
import zipfile
from collections.abc import Callable, Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from runtime_env.own_code import VERSION
from tests.built_wheel import PACKAGES, ROOT, build_wheel
from tests.test_architecture import nodes_of

NAME_OF_THE_REPOSITORY = re.compile(rf"(?<![\w./])(?:{'|'.join(PACKAGES)})\.[a-z_]+")
IMPORTED = re.compile(rf"^ *(?:from|import) ((?:{'|'.join(('rayscribe', *PACKAGES))})\b[\w.]*)", re.MULTILINE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(build_wheel(folder)) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def below_one_name() -> Callable[[str], str]:
    """What setup.py does with the text of a module."""
    function: Callable[[str], str] = runpy.run_path(str(ROOT / "setup.py"))["below_one_name"]
    return function


@pytest.mark.integration
def test_it_has_one_package_with_every_file_of_the_repository_s(wheel: Path) -> None:
    ours = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    expected = {f"rayscribe/{path.relative_to(ROOT)}" for path in ours if path.parent.name != "__pycache__"}
    packed = {str(path.relative_to(wheel)) for path in wheel.rglob("*") if path.is_file()}
    (described,) = wheel.glob("*.dist-info")
    metadata = {name for name in packed if name.startswith(described.name)}
    assert packed - metadata == expected | {"rayscribe/__init__.py", "rayscribe/py.typed"}
    assert (described / "top_level.txt").read_text().split() == ["rayscribe"]
    fields = Parser().parsestr((described / "METADATA").read_text())
    assert fields["Version"] == VERSION
    assert any(url.startswith("Source, https://") for url in fields.get_all("Project-URL", []))


def test_nothing_in_it_is_imported_or_named_as_in_the_repository(wheel: Path) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in wheel.rglob("*.py")}
    imported = {name.replace(".", "/") for text in texts.values() for name in IMPORTED.findall(text)}
    assert len(imported) > 300
    missing = [name for name in imported if not ((wheel / f"{name}.py").is_file() or (wheel / name).is_dir())]
    assert missing == []
    # Names in docstrings and comments are for people.
    named = [path for path, text in texts.items() if NAME_OF_THE_REPOSITORY.search(text)]
    assert [(str(path), name) for path in named for name in names_in_texts(path)] == []


def names_in_texts(path: Path) -> Iterator[str]:
    nodes = nodes_of(path)
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield from NAME_OF_THE_REPOSITORY.findall(node.value)


@pytest.mark.parametrize(
    ("written", "built"),
    [
        ("from trainers.errors import ConfigError", "from rayscribe.trainers.errors import ConfigError"),
        ("from trainers import main", "from rayscribe.trainers import main"),
        ("import os, jobs.model as m, jobserver", "import os, rayscribe.jobs.model as m, jobserver"),
        ("def f():\n    č = 1; from jobs.cli import (\n        app,\n    )\n", None),
        (
            "from trainers_of_others import x; jobs = 'jobs.model'",
            "from trainers_of_others import x; jobs = 'jobs.model'",
        ),
    ],
)
def test_imports_alone_are_written_anew(below_one_name: Callable[[str], str], written: str, built: str | None) -> None:
    assert below_one_name(written) == (built or written.replace("from jobs", "from rayscribe.jobs"))


def test_an_import_that_would_bind_the_short_name_ends_the_build(below_one_name: Callable[[str], str]) -> None:
    with pytest.raises(SyntaxError, match="line 2: write `from … import …` for import trainers"):
        below_one_name("import os\nimport trainers.main\n")
