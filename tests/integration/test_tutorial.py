"""The tutorial, line by line, as a new user: an empty folder and home, and nothing of the repository but the wheel.

REGENERATE_TUTORIAL=1 writes what is printed now into the page, in place of the lines of the same shape.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.console_blocks import found_in, steps_of, with_output
from tests.integration.test_anywhere import Environment, user
from tests.test_architecture import ROOT

__all__ = ["user"]
PAGE = ROOT / "docs" / "tutorial.md"
# What the environment has already.
INSTALLING = ("python3 -m venv ", "source ", "pip install ")
LONGEST_COMMAND_S = 900


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.timeout(2400)
def test_each_line_of_the_tutorial_does_what_the_page_shows(user: Environment, tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    folder = tmp_path / "speech"
    folder.mkdir()
    for name, content in re.findall(r"Save this as `([\w.]+)`:\n\n```python\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(content, encoding="utf-8")
    outputs = []
    try:
        for step in steps_of(text):
            is_there = step.command.startswith(INSTALLING)
            printed = [] if is_there else lines_of(step.command, user, folder)
            outputs.append(found_in(step.shown, printed))
    finally:
        user.run("rayscribe", "cluster", "down", "local", "--force", folder=folder)
    if os.environ.get("REGENERATE_TUTORIAL"):
        PAGE.write_text(with_output(PAGE, outputs), encoding="utf-8")


def lines_of(command: str, user: Environment, folder: Path) -> list[str]:
    """What a command prints, at the places that a user would have."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=user.variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=LONGEST_COMMAND_S,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    places = {str(folder): "/home/ana/speech", str(user.home): "/home/ana"}
    for real, shown in places.items():
        done.stdout = done.stdout.replace(real, shown)
    return [line.rstrip() for line in done.stdout.splitlines()]
