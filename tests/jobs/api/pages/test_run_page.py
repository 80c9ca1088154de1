"""The page of a run, its report, and what stops and resumes it."""

import json
import math
import re
from pathlib import Path

import httpx
import pytest

from jobs.api.server.pages.run_page import bars_of, curves_of
from jobs.model import AttemptState, Cause, Progress, RunState
from tests.jobs.api.backend_harness import BackendHarness
from tests.jobs.api.pages.read_pages import links, read_page, text_of
from tests.jobs.ledger.builders import make_attempt, move_to
from tests.trainers.run_folder.writers import first_group
from tests.trainers.scoring.report.parsed_page import Page
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage


@pytest.mark.parametrize("state", RunState)
def test_a_run_is_shown_with_state_reason_and_what_can_be_done(visitor: httpx.Client, state: RunState) -> None:
    name = f"run-{state.lower().replace('_', '-')}"
    page = read_page(visitor.get(f"/ui/runs/{name}"))
    assert page.texts["h1"] == [name] and state.lower().replace("_", " ") in page.texts["span"]
    verbs = {link.split("/")[2] for link in links(page) if link.endswith(name) and "/runs/" not in link} - {
        "logs",
        "curves",
    }
    expected = {RunState.SUCCEEDED: {"report"}, RunState.FAILED: {"resume"}, RunState.STOPPED: {"resume"}}
    assert verbs == expected.get(state, {"stop"})
    # What has ended changes no more; its log is read in any case.
    asked = {found["id"]: found["hx-get"] for _, found in page.elements if "hx-get" in found}
    later = {"more": f"/ui/logs/{name}", "curves": f"/ui/curves/{name}"}
    assert asked == (later if state.ended else {**later, "live-follow": f"/ui/runs/{name}"})
    assert ("None yet." in text_of(page)) == (state == RunState.QUEUED)


def test_a_run_that_is_not_there_is_said_with_names_that_are_near(visitor: httpx.Client) -> None:
    assert "did you mean run-training" in text_of(read_page(visitor.get("/ui/runs/run-trainin"), 404))
    for path in ("runs/%00", f"runs/{'x' * 2001}", "logs/none", "stop/none", "resume/none", "report/none"):
        read_page(visitor.get(f"/ui/{path}"), 404)
    read_page(visitor.get("/ui/runs/run-training?attempt=0"), 422)


def test_the_course_of_the_error_rate_and_the_numbers_are_shown(harness: BackendHarness, browser: httpx.Client) -> None:
    wers = (50.0, 30.0, 40.0, 10.0)
    progress = Progress(
        phase="TRAINING", step=5, max_steps=10, loss=0.25, wer=10.0, wers=wers, best_wer=9.5, eta_s=90.0
    )
    move_to(harness.ledger, harness.add_in_state("course", RunState.TRAINING), RunState.TRAINING, progress=progress)
    page = read_page(browser.get("/ui/runs/course"))
    (line,) = page.all("polyline")
    assert line["points"] == "0.0,0.0 333.3,100.0 666.7,50.0 1000.0,200.0"
    assert page.texts["figcaption"] == ["WER on the last 4 validations: 50.00% → 10.00%"]
    assert {"10.00%", "9.50%", "0.2500", "1 min 30 s", "2 workers"} <= {
        *page.texts["dd"],
        *page.texts["span"],
    }


def test_a_curve_needs_two_values_and_may_be_flat() -> None:
    assert curves_of("WER", {}) is None and curves_of("WER", {"WER": [(1, 1.0), (2, math.nan)]}) is None
    flat = curves_of("Loss", {"training": [(10, 5.0), (20, 5.0)], "validation": [(10, 5.0)]})
    assert flat is not None and flat.lines == [("training", "0.0,200.0 1000.0,200.0")]
    assert flat.caption == "Loss: training from 5 at step 10 to 5 at step 20"


def test_what_was_measured_is_drawn(harness: BackendHarness, browser: httpx.Client) -> None:
    run = harness.add_in_state("measured", RunState.TRAINING)
    response = browser.get("/ui/curves/measured", headers={"HX-Request": "true"})
    assert "Nothing has been measured yet." in response.text
    folder = RunFolder(open_storage(run.run_folder))
    group = first_group(folder)
    lines = [{"step": step, "loss": 4.0 - step, "learning_rate": 0.1} for step in (1, 2)]
    lines += [{"step": step, "eval_loss": 3.0 - step, "eval_wer": 50.0 - step} for step in (1, 2)]
    for line in lines:
        folder.storage.append_line(group.group.metrics_key, json.dumps(line))
    drawn = Page(browser.get("/ui/curves/measured", headers={"HX-Request": "true"}).text)
    assert [found["hx-trigger"] for found in drawn.all("div") if "hx-get" in found] == ["every 30s"]
    assert {found["points"] for found in drawn.all("polyline")} >= {"0.0,0.0 1000.0,100.0", "0.0,100.0 1000.0,200.0"}
    page = read_page(browser.get("/ui/curves/measured"))
    assert any(
        "Error rates on validation, percent: WER from 49 at step 1 to 48 at step 2" in text
        for text in page.texts["figcaption"]
    )


def test_attempts_are_on_the_time_line_of_their_run() -> None:
    ended = {"state": AttemptState.ENDED, "cause": Cause.NODE_LOST}
    attempts = [
        make_attempt("sr", 1, created_s=1000.0, ended_s=1250.0, **ended),
        make_attempt("sr", 2, created_s=1500.0, ended_s=1500.0, **ended),
        make_attempt("sr", 3, created_s=1600.0),
    ]
    bars = [(bar.left, bar.width) for bar in bars_of(attempts, now_s=2000.0)]
    assert bars == [(0, 250), (500, 4), (600, 400)]
    assert bars_of([], now_s=2000.0) == []
    assert [(bar.left, bar.width) for bar in bars_of(attempts[2:], now_s=1600.0)] == [(0, 4)]


def test_attempts_are_listed_with_what_ended_them(harness: BackendHarness, browser: httpx.Client) -> None:
    harness.add_in_state("lost", RunState.FAILED)
    with harness.ledger.write() as writer:
        writer.change_attempt("lost", 1, message="worker 3 is gone <b>", exit_code=14, last_step=1500)
    page = read_page(browser.get("/ui/runs/lost"))
    shown = text_of(page)
    assert "node lost" in shown and "worker 3 is gone <b> (exit code 14)" in shown and "1,500" in shown
    assert len(page.all("rect")) == 2 and "/ui/runs/lost?attempt=1#log" in links(page)
    # It has all of the table's width, whatever is in the columns.
    assert "Reason" not in page.texts["th"]
    assert [cell["colspan"] for cell in page.all("td") if cell.get("class") == "reason"] == ["8"]
    assert len([text for text in page.texts["th"] if text != "1"]) == 8


def test_a_report_is_shown_as_a_document_that_can_do_nothing(harness: BackendHarness, browser: httpx.Client) -> None:
    run = harness.add_in_state("reported", RunState.SUCCEEDED)
    assert "no report yet" in text_of(read_page(browser.get("/ui/report/reported"), 404))
    folder = Path(run.run_folder)
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<h1>č</h1><script>alert(1)</script>", encoding="utf-8")
    response = browser.get("/ui/report/reported")
    assert response.status_code == 200 and "č" in response.text
    policy = response.headers["content-security-policy"].split("; ")
    assert "sandbox" in policy and "default-src 'none'" in policy and not [part for part in policy if "script" in part]


def test_a_report_that_leads_out_of_the_run_folder_is_not_read(harness: BackendHarness, browser: httpx.Client) -> None:
    folder = Path(harness.add_in_state("leading-out", RunState.SUCCEEDED).run_folder)
    folder.mkdir(parents=True)
    (harness.folder / "secret.html").write_text("secret")
    (folder / "report.html").symlink_to(harness.folder / "secret.html")
    response = browser.get("/ui/report/leading-out")
    assert response.status_code >= 400 and ">secret" not in response.text


def test_a_stop_is_asked_first_and_is_the_user_s(harness: BackendHarness, browser: httpx.Client) -> None:
    harness.add_in_state("to-stop", RunState.TRAINING)
    page = read_page(browser.get("/ui/stop/to-stop"))
    assert "It saves a last checkpoint first." in text_of(page)
    assert [form for form in page.all("form") if "action" not in form] == [{"method": "post", "class": "actions"}]
    assert harness.ledger.run("to-stop").stop_requested_s is None
    response = browser.post("/ui/stop/to-stop")
    assert (response.status_code, response.headers["location"]) == (303, "/ui/runs/to-stop")
    assert harness.ledger.run("to-stop").stop_requested_s is not None
    assert harness.ledger.events("to-stop")[-1].text.startswith("ana requested a stop")
    assert "stopping, as ana requested" in text_of(read_page(browser.get("/ui/runs/to-stop")))


def test_a_resume_is_asked_first_and_is_the_user_s(harness: BackendHarness, browser: httpx.Client) -> None:
    harness.add_in_state("to-resume", RunState.FAILED)
    assert "queue default" in text_of(read_page(browser.get("/ui/resume/to-resume")))
    assert harness.ledger.run("to-resume").state == "FAILED"
    assert browser.post("/ui/resume/to-resume").status_code == 303
    assert harness.ledger.run("to-resume").state == "QUEUED"
    assert harness.ledger.events("to-resume")[-1].text.startswith("ana resumed")


@pytest.mark.parametrize(
    ("verb", "name"), [("stop", "run-failed"), ("resume", "run-training"), ("resume", "run-succeeded")]
)
def test_what_cannot_be_done_is_said(visitor: httpx.Client, verb: str, name: str) -> None:
    page = read_page(visitor.get(f"/ui/{verb}/{name}"), 409)
    assert re.search(r"has already ended|only a failed or stopped run", text_of(page))
    if verb == "resume":
        read_page(visitor.post(f"/ui/{verb}/{name}"), 409)
