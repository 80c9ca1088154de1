"""The log of a run, which follows."""

from pathlib import Path

import httpx
import pytest

from jobs.api.server.pages.log_page import LINES
from jobs.model import AttemptState, Cause, Run, RunState
from tests.jobs.api.backend_harness import BackendHarness
from tests.jobs.api.pages.read_pages import read_page, text_of
from tests.jobs.ledger.builders import make_attempt, move_to
from tests.trainers.scoring.report.parsed_page import Page
from trainers.run_folder.attempt_status import driver_log_key, worker_log_key

HTMX = {"HX-Request": "true"}


def write_log(run: Run, text: str, key: str = driver_log_key(1)) -> None:
    path = Path(run.run_folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write(text)


def part(response: httpx.Response) -> tuple[list[str], dict[str, str | None]]:
    """The lines of a part for htmx, and what asks for the next one."""
    assert response.status_code == 200, response.text
    page = Page(response.text)
    assert page.all("html") == page.all("script") == []
    asking = [found for found in page.all("p") if "hx-get" in found]
    return page.texts.get("div", []), asking[0] if asking else {}


def test_lines_follow_without_gap_or_repeat_to_the_end(harness: BackendHarness, browser: httpx.Client) -> None:
    run = harness.add_in_state("growing", RunState.TRAINING)
    write_log(run, "one\ntwo\nhal")
    lines, asking = part(browser.get("/ui/logs/growing", headers=HTMX))
    assert lines == ["one", "two"] and asking["hx-trigger"] == "every 2s" and asking["id"] == "more"
    write_log(run, "f <b>\x1b[31mred\x1b[0m\u202e\n")
    lines, asking = part(browser.get(asking["hx-get"] or "", headers=HTMX))
    assert lines == ["half <b>red\\u202e"]
    with harness.ledger.write() as writer:
        writer.change_attempt(run.id, 1, state=AttemptState.ENDED, cause=Cause.STOPPED, ended_s=5000.0)
    move_to(harness.ledger, run, RunState.STOPPED)
    response = browser.get(asking["hx-get"] or "", headers=HTMX)
    assert part(response) == ([], {}) and "end of attempt 1" in response.text


def test_the_next_attempt_follows_by_itself(harness: BackendHarness, browser: httpx.Client) -> None:
    run = harness.add_in_state("again", RunState.RETRYING)
    write_log(run, "first\n")
    lines, asking = part(browser.get("/ui/logs/again", headers=HTMX))
    assert lines == ["first"] and asking["hx-trigger"] == "every 5s"
    with harness.ledger.write() as writer:
        writer.open_attempt(make_attempt(run.id, 2, created_s=9000.0))
    move_to(harness.ledger, run, RunState.SETTING_UP, attempt=2)
    write_log(run, "second\n", driver_log_key(2))
    lines, asking = part(browser.get(asking["hx-get"] or "", headers=HTMX))
    assert lines == [] and asking["hx-trigger"] == "load delay:50ms"
    assert part(browser.get(asking["hx-get"] or "", headers=HTMX))[0] == ["second"]
    # One that is asked for by its number ends with it.
    lines, asking = part(browser.get("/ui/logs/again?attempt=1", headers=HTMX))
    assert (lines, asking) == (["first"], {})


def test_of_a_long_log_the_last_lines_are_shown(harness: BackendHarness, browser: httpx.Client) -> None:
    write_log(harness.add_in_state("long", RunState.FAILED), "".join(f"line {number}\n" for number in range(3000)))
    response = browser.get("/ui/logs/long", headers=HTMX)
    assert part(response)[0] == [f"line {number}" for number in range(3000 - LINES, 3000)]
    assert f"{3000 - LINES:,} earlier lines are left out" in response.text


def test_one_source_is_shown_alone(harness: BackendHarness, browser: httpx.Client) -> None:
    run = harness.add_in_state("sources", RunState.TRAINING)
    write_log(run, "of the driver\n")
    write_log(run, "of rank 1\n", worker_log_key(1, 1, "g"))
    lines, asking = part(browser.get("/ui/logs/sources?source=rank-1", headers=HTMX))
    assert lines == ["of rank 1"] and "source=rank-1" in (asking["hx-get"] or "")


def test_what_cannot_be_read_now_is_asked_for_again(harness: BackendHarness, browser: httpx.Client) -> None:
    logs = Path(harness.add_in_state("unreadable", RunState.FAILED).run_folder, driver_log_key(1)).parent
    logs.parent.mkdir(parents=True)
    logs.symlink_to(harness.folder)
    response = browser.get("/ui/logs/unreadable", headers=HTMX)
    lines, asking = part(response)
    assert lines == [] and asking["hx-trigger"] == "every 5s" and "trying again" in response.text
    response = browser.get("/ui/logs/run-queued", headers=HTMX)
    assert "no attempt yet" in response.text and "follow=true" in (part(response)[1]["hx-get"] or "")


@pytest.mark.parametrize("query", ["cursor=x", "source=rank", "attempt=0"])
def test_what_is_no_part_of_a_log_is_said(visitor: httpx.Client, query: str) -> None:
    read_page(visitor.get(f"/ui/logs/run-failed?{query}"), 422)


def test_without_a_script_the_log_is_a_page_of_its_own(harness: BackendHarness, browser: httpx.Client) -> None:
    write_log(harness.add_in_state("alone", RunState.TRAINING), "one <i>\n")
    page = read_page(browser.get("/ui/logs/alone"))
    assert "one <i>" in text_of(page)
    assert any("cursor=" in (found["href"] or "") for found in page.all("a"))
