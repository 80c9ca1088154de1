"""Runs that were ticked, compared."""

from pathlib import Path

import httpx

from jobs.model import RunState
from tests.jobs.api.backend_harness import BackendHarness
from tests.jobs.api.pages.read_pages import read_page, text_of
from tests.jobs.cli.test_compare_command import FIRST, SECOND, evaluated


def test_ticked_runs_are_compared_with_the_first(harness: BackendHarness, browser: httpx.Client) -> None:
    for name, hypotheses in (("first", FIRST), ("second", SECOND)):
        folder = Path(harness.add_in_state(name, RunState.SUCCEEDED).run_folder)
        folder.mkdir(parents=True)
        evaluated(folder, hypotheses)
    page = read_page(browser.get("/ui/compare?run=first&run=second"))
    assert page.texts["h1"] == ["first and second"]
    assert {"25.00%", "8.33%"} <= {*page.texts["td"]}
    assert page.texts["del"] and page.texts["ins"]
    response = browser.get("/ui/compare?run=first&run=second&split=validation")
    assert "validation has not been scored" in text_of(read_page(response, 422))


def test_what_cannot_be_compared_is_said(visitor: httpx.Client) -> None:
    for query in ("", "run=run-failed", "run=run-failed&run=run-failed", "&".join(f"run=r{n}" for n in range(9))):
        assert "tick 2 to 8" in text_of(read_page(visitor.get(f"/ui/compare?{query}"), 422))
    read_page(visitor.get("/ui/compare?run=run-failed&run=none"), 404)
    read_page(visitor.get("/ui/compare?run=run-failed&run=run-stopped&split=../x"), 422)
