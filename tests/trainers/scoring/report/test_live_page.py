"""The page of a run that trains: written by a process of its own, once for several requests, and missed by nobody."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.trainers.run_folder.writers import begin
from trainers.run_folder.layout import REPORT, RunFolder
from trainers.scoring.report import live_page
from trainers.scoring.report.live_page import LivePage
from trainers.storage import open_storage

DEADLINE_S = 60.0


def wait_for(condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def makers() -> list[psutil.Process]:
    """Processes of this one that make a page."""
    found = []
    for child in psutil.Process().children():
        # It may end at any time.
        with suppress(psutil.Error):
            if any("write_page" in word for word in child.cmdline()):
                found.append(child)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that has begun."""
    found = RunFolder(open_storage(str(tmp_path / "run")))
    begin(found)
    return found


@pytest.mark.integration
def test_a_page_is_written_after_a_request_and_a_problem_is_told_once(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "PAUSE_S", 0.0)
    monkeypatch.setattr(live_page, "LOWEST_PRIORITY", 0)
    lines: list[str] = []
    with LivePage(folder, lines.append) as page:
        page.request()
        wait_for(lambda: folder.storage.exists(REPORT) or lines)
        assert b"<h1>run</h1>" in folder.storage.read_bytes(REPORT) and lines == []
        folder.storage.delete_tree("journal")
        page.request()
        wait_for(lambda: lines)
        page.request()
        wait_for(makers)
        wait_for(lambda: not makers())
    (line,) = lines
    assert line.startswith("warning: the page of the run was not written; training continues: ")
    assert "no run has begun here" in line and line.endswith(f"try rayscribe report {folder.url}")


def test_the_end_of_a_training_waits_for_no_page(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "PAUSE_S", 0.0)
    monkeypatch.setattr(live_page, "LOWEST_PRIORITY", 0)
    lines: list[str] = []
    with LivePage(folder, lines.append) as page:
        page.request()
        wait_for(makers)
    assert makers() == [] and lines == []


def test_a_training_that_ends_soon_makes_no_page(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "PAUSE_S", 10 * DEADLINE_S)
    lines: list[str] = []
    with LivePage(folder, lines.append) as page:
        page.request()
        page.request()
    assert not folder.storage.exists(REPORT) and lines == []
