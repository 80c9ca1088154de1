"""Queues and usage as a page."""

import httpx
import pytest

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


@pytest.mark.parametrize("query", ["days=2", "days=", "by=user"])
def test_what_is_no_time_is_said(visitor: httpx.Client, query: str) -> None:
    read_page(visitor.get(f"/ui/usage?{query}"), 422)
