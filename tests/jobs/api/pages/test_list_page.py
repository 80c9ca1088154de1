"""The list of runs as a page."""

import re

import httpx
import pytest

from jobs.api.server.pages.list_page import GROUPS, RUNS
from jobs.model import Progress, RunState
from tests.jobs.api.backend_harness import BackendHarness
from tests.jobs.api.pages.read_pages import links, read_page, text_of
from tests.jobs.ledger.builders import move_to

MARKUP = "<script>alert(1)</script>\"'&"
HOSTILE = f"{MARKUP}\u202e\x1b[31m"


def names(response: httpx.Response) -> list[str]:
    return [str(field["value"]) for field in read_page(response).all("input") if field["name"] == "run"]


def test_every_run_is_listed_with_its_state_and_is_up_to_date_while_it_is_looked_at(visitor: httpx.Client) -> None:
    response = visitor.get("/ui/runs")
    page = read_page(response)
    assert len(names(response)) == len(RunState)
    assert {f"/ui/runs/run-{state.lower().replace('_', '-')}" for state in RunState} <= links(page)
    assert {state.lower().replace("_", " ") for state in RunState} <= {*page.texts["span"]}
    (poll,) = (found for found in page.all("div") if "hx-get" in found)
    assert (poll["hx-get"], poll["hx-select"], poll["hx-target"]) == ("/ui/runs", "#live", "#live")
    assert "3 waiting, 5 running" in page.texts["p"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=FAILED", {"run-failed"}),
        ("state=waiting", {f"run-{state.lower()}" for state in GROUPS["waiting"]}),
        ("state=ended&queue=default&user=ana&tag=every", {"run-succeeded", "run-failed", "run-stopped"}),
        ("state=&queue=&user=&tag=", {f"run-{state.lower().replace('_', '-')}" for state in RunState}),
        ("queue=small", set()),
        ("user=boris", set()),
    ],
)
def test_runs_are_filtered(visitor: httpx.Client, query: str, found: set[str]) -> None:
    assert {*names(visitor.get(f"/ui/runs?{query}"))} == found


@pytest.mark.parametrize(
    "query", ["state=NO", "stat=FAILED", "cursor=%00", "queue=%0a", "cursor=abc", "tag=" + "x" * 300]
)
def test_what_is_no_filter_is_said(visitor: httpx.Client, query: str) -> None:
    read_page(visitor.get(f"/ui/runs?{query}"), 422)


def test_parts_of_a_long_list_follow_each_other(harness: BackendHarness, browser: httpx.Client) -> None:
    for number in range(RUNS + 3):
        harness.add(f"many-{number:03}", tags=["many"], submitted_s=5000.0 + number, queued_s=5000.0 + number)
    first = browser.get("/ui/runs?tag=many&state=QUEUED")
    (older,) = (link for link in links(read_page(first)) if "cursor=" in link)
    second = browser.get(older)
    assert names(first) + names(second) == [f"many-{number:03}" for number in reversed(range(RUNS + 3))]
    assert {link for link in links(read_page(second)) if "tag=many" in link} == {"/ui/runs?state=QUEUED&tag=many"}


def test_texts_of_others_are_shown_and_not_obeyed(harness: BackendHarness, browser: httpx.Client) -> None:
    run = harness.add(MARKUP, user=HOSTILE, queue=HOSTILE, tags=[HOSTILE], submitted_s=9000.0, queued_s=9000.0)
    move_to(harness.ledger, run, RunState.FAILED, reason=HOSTILE)
    (link,) = (link for link in links(read_page(browser.get("/ui/runs"))) if link.startswith("/ui/runs/%3Cscript"))
    paths = ["/ui/runs", link, "/ui/usage", *(link.replace("/runs/", f"/{verb}/") for verb in ("resume", "logs"))]
    for path in paths:
        shown = text_of(read_page(browser.get(path)))
        assert MARKUP in shown and "\u202e" not in shown and "\x1b" not in shown
        assert f"{MARKUP}\\u202e" in shown


def test_progress_and_error_rate_are_shown(harness: BackendHarness, browser: httpx.Client) -> None:
    progress = Progress(phase="TRAINING", step=1200, max_steps=4000, best_wer=12.345)
    run = harness.add_in_state("far", RunState.TRAINING, tags=["far"])
    move_to(harness.ledger, run, RunState.TRAINING, progress=progress, reason="step 1,200 of 4,000")
    page = read_page(browser.get("/ui/runs?tag=far"))
    assert page.all("progress") == [{"max": "4000", "value": "1200", "aria-label": "Steps"}]
    assert re.search(r"12\.3[45]%", text_of(page))
