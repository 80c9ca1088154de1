"""Queues and usage as a page."""

import re

import httpx
import pytest

from jobs.api.server.pages.list_page import KEPT_S, RecentUsage
from jobs.model import RunState
from tests.jobs.api.backend_harness import BackendHarness
from tests.jobs.api.pages.read_pages import links, read_page


def test_queues_are_shown_with_limits_and_runs(visitor: httpx.Client) -> None:
    page = read_page(visitor.get("/ui/usage"))
    assert page.texts["caption"][0].startswith("Limits and runs; one that has waited for 6 h 00 min")
    assert {"/ui/runs?queue=default", "/ui/runs?queue=small"} <= links(page)
    cells = page.texts["td"]
    assert cells[:5] == ["none", "none", "3", "5", "11"]
    assert cells[5:10] == ["4 GPUs", "1 run", "0", "0", "0"]


def test_usage_is_summed_by_user_and_queue_over_a_time(harness: BackendHarness, browser: httpx.Client) -> None:
    harness.add_in_state("of-boris", RunState.SUCCEEDED, user="boris", queue="former")
    ever = read_page(browser.get("/ui/usage?days=all"))
    # An hour of two workers with a GPU each.
    assert {"/ui/runs?user=boris", "/ui/runs?queue=former"} <= links(ever)
    assert "2.00" in ever.texts["td"] and "no longer configured" in ever.texts["td"]
    recent = read_page(browser.get("/ui/usage?days=1"))
    assert "/ui/runs?user=boris" not in links(recent)


def test_it_is_summed_again_after_a_minute_and_said_of_when_it_is(
    harness: BackendHarness, browser: httpx.Client
) -> None:
    now = [1_700_000_000.0]
    recent = RecentUsage(clock=lambda: now[0])
    runs = harness.backend.service.as_user("ana")
    before = recent.of("all", runs)
    assert (before.at_s, list(before.rows)) == (now[0], ["user", "queue"])
    harness.add_in_state("of-clara", RunState.SUCCEEDED, user="clara")
    now[0] += KEPT_S
    assert recent.of("all", runs) is before
    now[0] += 1.0
    assert "clara" in {row.key for row in recent.of("all", runs).rows["user"]}
    captions = read_page(browser.get("/ui/usage?days=7")).texts["caption"]
    assert re.fullmatch(r"What attempts have held, by user, as of \d{4}-\d\d-\d\d \d\d:\d\d UTC", captions[1])


@pytest.mark.parametrize("query", ["days=2", "days=", "by=user"])
def test_what_is_no_time_is_said(visitor: httpx.Client, query: str) -> None:
    read_page(visitor.get(f"/ui/usage?{query}"), 422)
