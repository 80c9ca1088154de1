"""Entry points of other distributions in a table of variants."""

import sys
from pathlib import Path

import pytest

from trainers.errors import ConfigError
from trainers.plugins import with_plugins

GROUP = "rayscribe.of_this_test"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The metadata of a distribution whose entry points a test writes."""
    metadata = tmp_path / "other_asr-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other-asr\nVersion: 1.0\n")
    (tmp_path / "of_other_asr.py").write_text("first, second = 'the first', 'the second'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "of_other_asr", raising=False)
    return metadata / "entry_points.txt"


def test_variants_of_an_installed_distribution_follow_ours(installed: Path) -> None:
    installed.write_text(f"[{GROUP}]\nb = of_other_asr:second\na = of_other_asr:first\n[other]\nc = x:y\n")
    table = with_plugins(GROUP, {"ours": "own"})
    assert [*table.items()] == [("ours", "own"), ("a", "the first"), ("b", "the second")]


def test_without_plugins_the_table_is_ours() -> None:
    assert with_plugins(GROUP, {"ours": "own"}) == {"ours": "own"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("ours = of_other_asr:first", "ours = of_other_asr:first of other-asr: its name is taken by another"),
        ("a = of_other_asr:third", "a = of_other_asr:third of other-asr cannot be loaded: AttributeError: "),
        ("a = not_there:first", "cannot be loaded: ModuleNotFoundError: No module named 'not_there'"),
    ],
)
def test_what_cannot_be_added_is_refused_by_its_distribution(installed: Path, line: str, problem: str) -> None:
    installed.write_text(f"[{GROUP}]\n{line}\n")
    with pytest.raises(ConfigError) as refused:
        with_plugins(GROUP, {"ours": "own"})
    assert problem in str(refused.value)
