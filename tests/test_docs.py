"""The generated pages of docs/ say what the code says, and the README names nothing that is not there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.page_commands import IDS, PAGES
from tests.test_architecture import ROOT
from trainers.config.parts.data_location import FORMATS, MANIFEST, DataLocation
from trainers.config.parts.data_part import DataPart
from trainers.config.parts.run_part import RunPart

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def test_the_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, "docs/generate.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr


def test_each_file_of_the_distribution_that_tests_install_is_explained() -> None:
    folder = ROOT / "tests" / "plugins" / "distribution"
    files = {str(path.relative_to(folder)) for pattern in ("*.toml", "*.py") for path in folder.rglob(pattern)}
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\*\*`([^`]+)`\*\*$", page, re.MULTILINE)) == files - {"speech_extras/__init__.py"}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_files_and_functions_that_are_named_exist(page: Path) -> None:
    """`trainers/training/worker.py`, and functions in it: `trainers/training/worker.py:train`."""
    pattern = r"`((?:jobs|trainers|runtime_env|tests|cluster_configs)/[\w/]+\.(?:py|yaml|sh))(?::(\w+))?`"
    named = re.findall(pattern, page.read_text(encoding="utf-8"))
    missing = [path for path, _ in named if not (ROOT / path).exists()]
    unknown = [
        f"{path}:{name}"
        for path, name in named
        if name and path not in missing and not re.search(rf"\b(?:def|class) {name}\b", (ROOT / path).read_text())
    ]
    assert missing + unknown == []


@pytest.mark.parametrize("package", ["jobs", "trainers", "cluster_configs"])
def test_the_layout_has_a_line_for_each_package(package: str) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    lines = re.search(rf"^{package}/ .*\n((?:    .*\n)+)", page, re.MULTILINE)
    assert lines is not None
    folders = {path.parent.name for path in (ROOT / package).glob("*/*") if path.is_file() and path.suffix != ".pyc"}
    assert set(re.findall(r"^    (\w+)/ ", lines[1], re.MULTILINE)) == folders


def test_the_glossary_has_at_most_thirty_terms() -> None:
    glossary = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Glossary")[2].partition("\n## ")[0]
    assert 0 < len(re.findall(r"^\| (?!term \||---)", glossary, re.MULTILINE)) <= 30


def test_every_example_of_data_is_a_config() -> None:
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    examples = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert len(examples) > 8
    for example in examples:
        data = example["data"]
        if data.get("train") is not None:
            data = {"validation": "/data/valid.csv", **data}
        DataPart.model_validate(data)
        RunPart.model_validate(example.get("run", {}))


def test_each_format_of_data_is_in_the_table_of_its_page() -> None:
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    table = page.partition("| Source |")[2].partition("\n\n")[0]
    locations = [DataLocation.parse(text) for text in re.findall(r"`([^` ]+)`", table.partition("\n|---|---|\n")[2])]
    assert {location.format for location in locations} == {MANIFEST, *FORMATS}
