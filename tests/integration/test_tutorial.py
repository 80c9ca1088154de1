"""The tutorial, line by line, as a new user: an empty folder and home, and nothing of the repository but the wheel."""

import re
from pathlib import Path

import pytest

from tests.docs.page_run import PageRun
from tests.integration.test_anywhere import Environment, user
from tests.test_architecture import ROOT

__all__ = ["user"]
PAGE = ROOT / "docs" / "tutorial.md"
INSTALLING = ("python3 -m venv ", "source ", "pip install ")


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.timeout(2400)
def test_each_line_of_the_tutorial_does_what_the_page_shows(user: Environment, tmp_path: Path) -> None:
    folder = tmp_path / "speech"
    folder.mkdir()
    saved = re.findall(r"Save this as `([\w.]+)`:\n\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for name, content in saved:
        (folder / name).write_text(content, encoding="utf-8")
    shown_as = {folder: "/home/ana/speech", user.home: "/home/ana"}
    reader = PageRun(folder, user.variables, shown_as, INSTALLING)
    try:
        reader.run(PAGE)
    finally:
        # Where the page's own line was not reached.
        reader.result_of("rayscribe cluster down local --force")
