"""The documentation as a site, and its first page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.page_commands import commands_of, scripts_of
from tests.test_architecture import ROOT

FETCHED = re.compile(r'<(?:script|img|iframe)\b[^>]*\bsrc="https?:|<link rel="(?:stylesheet|icon)" href="https?:')
SCREEN_LINES = 60


@pytest.mark.integration
def test_no_link_and_no_anchor_leads_nowhere_and_nothing_is_fetched_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 50
    assert [found for page in pages for found in FETCHED.findall(page.read_text(encoding="utf-8"))] == []


def test_the_readme_is_one_screen_with_a_clone_two_targets_an_installation_and_a_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= SCREEN_LINES
    assert [words[:2] for script in scripts_of(ROOT / "README.md") for words in commands_of(script)] == [
        ["git", "clone"],
        ["cd", "rayscribe"],
        ["make", "demo"],
        ["make", "test"],
        ["pip", "install"],
        ["rayscribe", "init"],
        ["rayscribe", "train"],
    ]
    assert len(re.findall(r"^!\[", text, re.MULTILINE)) == 1
