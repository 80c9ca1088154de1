"""The verbs over HTTP: what a program gets back, on a real ledger."""

from pathlib import Path

import httpx
import pytest

from jobs.api.protocol import IDEMPOTENCY_KEY
from jobs.model import Attempt, Event, Run, RunState
from tests.jobs.api.backend_harness import ADDRESS, BackendHarness, config_of, make_package
from trainers.run_folder.attempt_status import driver_log_key


def run_request(http: httpx.Client, folder: Path, name: str, **job: object) -> dict[str, object]:
    """A submission whose package the service has."""
    sha256 = make_package(folder / "upload.zip")
    http.put(f"/v1/packages/{sha256}", content=(folder / "upload.zip").read_bytes()).raise_for_status()
    return {
        "config": config_of(name, **job),
        "package": sha256,
    }


def error_of(response: httpx.Response) -> tuple[int, str, int]:
    """Status, type and exit code of an error."""
    error = response.json()["error"]
    return response.status_code, error["type"], error["exit_code"]


def test_a_run_of_every_state_is_listed_newest_first(reader: httpx.Client) -> None:
    page = reader.get("/v1/runs").raise_for_status().json()
    runs = [Run.model_validate(run) for run in page["runs"]]
    assert {run.state for run in runs} == set(RunState)
    assert [run.submitted_s for run in runs] == sorted((run.submitted_s for run in runs), reverse=True)
    assert page["next_cursor"] is None


def test_a_waiting_run_says_what_it_waits_for(reader: httpx.Client) -> None:
    reason = reader.get("/v1/runs/run-queued").raise_for_status().json()["reason"]
    assert "position 1 in queue default" in reason
    assert ADDRESS in reason


def test_filters_choose_and_states_may_be_repeated(http: httpx.Client, harness: BackendHarness) -> None:
    harness.add("other", queue="small", user="bo", tags=["serbian"])

    def names(**query: object) -> set[str]:
        response = http.get("/v1/runs", params=query).raise_for_status()  # type: ignore[arg-type]
        return {run["id"] for run in response.json()["runs"]}

    assert names(state=["FAILED", "STOPPED"]) == {"run-failed", "run-stopped"}
    assert names(queue="small") == names(user="bo") == names(tag="serbian") == {"other"}
    assert names(user="bo", state="FAILED") == set()
    assert len(names(tag="every")) == len(RunState)


def test_pages_follow_one_another_without_gap_or_repeat(reader: httpx.Client) -> None:
    found, cursor = [], None
    while True:
        query = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = reader.get("/v1/runs", params=query).raise_for_status().json()
        found += [run["id"] for run in page["runs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(found) == len(set(found)) == len(RunState)


def test_a_mistyped_filter_is_refused_rather_than_ignored(reader: httpx.Client) -> None:
    response = reader.get("/v1/runs", params={"states": "FAILED"})
    assert error_of(response) == (422, "ConfigError", 2)
    assert reader.get("/v1/runs", params={"limit": 501}).status_code == 422
    assert reader.get("/v1/runs", params={"limit": 0}).status_code == 422
    assert error_of(reader.get("/v1/runs", params={"cursor": "bm9uc2Vuc2U"})) == (422, "ConfigError", 2)


def test_attempts_and_events_tell_the_story(reader: httpx.Client) -> None:
    attempts = reader.get("/v1/runs/run-failed/attempts").raise_for_status().json()
    assert [Attempt.model_validate(item).submission_id for item in attempts] == ["run-failed-a1"]
    first = reader.get("/v1/runs/run-failed/events", params={"limit": 1}).raise_for_status().json()
    assert Event.model_validate(first[0]).cause == "submitted"
    rest = reader.get("/v1/runs/run-failed/events", params={"after": first[0]["number"]}).raise_for_status().json()
    assert [event["state"] for event in rest] == ["SETTING_UP", "FAILED"]
    after = rest[-1]["number"]
    assert reader.get("/v1/runs/run-failed/events", params={"after": after}).raise_for_status().json() == []


def test_an_unknown_run_is_not_found_and_near_names_are_offered(http: httpx.Client) -> None:
    response = http.get("/v1/runs/run-faild")
    assert error_of(response) == (404, "NotFoundError", 21)
    assert "did you mean run-failed" in response.json()["error"]["message"]
    for path in ("attempts", "events", "logs"):
        assert error_of(http.get(f"/v1/runs/nothing/{path}")) == (404, "NotFoundError", 21)
    for verb in ("stop", "resume"):
        assert error_of(http.post(f"/v1/runs/nothing/{verb}")) == (404, "NotFoundError", 21)


def test_names_that_no_run_can_have_are_not_found_either(reader: httpx.Client) -> None:
    for name in ("%00", "a%0Ab", "x" * 300, "%F0%9F%90%8D", "..%2f..%2fetc"):
        assert error_of(reader.get(f"/v1/runs/{name}")) == (404, "NotFoundError", 21)


def test_stop_ends_a_waiting_run_at_once_and_says_whose_token_did(http: httpx.Client, harness: BackendHarness) -> None:
    other = harness.ledger.tokens.add("bo", 1.0)
    response = http.post("/v1/runs/run-queued/stop", headers={"Authorization": f"Bearer {other}"}).raise_for_status()
    assert response.json()["state"] == "STOPPED"
    last = harness.ledger.events("run-queued")[-1]
    assert (last.cause, last.state, "bo requested" in last.text) == ("stop_requested", RunState.STOPPED, True)
    again = http.post("/v1/runs/run-queued/stop").raise_for_status()
    assert again.json() == response.json()


def test_stop_of_a_live_run_is_noted_for_the_controller(http: httpx.Client, harness: BackendHarness) -> None:
    assert http.post("/v1/runs/run-training/stop").raise_for_status().json()["state"] == "TRAINING"
    assert harness.ledger.run("run-training").stop_requested_s is not None


def test_resume_queues_a_failed_run_and_refuses_a_live_one(http: httpx.Client, harness: BackendHarness) -> None:
    assert http.post("/v1/runs/run-failed/resume").raise_for_status().json()["state"] == "QUEUED"
    assert harness.ledger.events("run-failed")[-1].text == "ana resumed it"
    assert error_of(http.post("/v1/runs/run-training/resume")) == (409, "ConflictError", 22)
    assert error_of(http.post("/v1/runs/run-succeeded/resume")) == (409, "ConflictError", 22)


def test_a_submission_becomes_a_run_of_the_token_s_user(
    http: httpx.Client, tmp_path: Path, harness: BackendHarness
) -> None:
    response = http.post("/v1/runs", json=run_request(http, tmp_path, "new", tags=["b", "a"], priority=3))
    assert response.status_code == 201
    assert response.headers["Location"] == "/v1/runs/new"
    run = harness.ledger.run("new")
    assert (run.user, run.state, run.priority, run.tags, run.address) == ("ana", "QUEUED", 3, ["a", "b"], ADDRESS)
    assert http.get(response.headers["Location"]).raise_for_status().json()["uid"] == run.uid


def test_the_same_key_submits_once_and_another_ticket_with_it_is_refused(
    http: httpx.Client, tmp_path: Path, harness: BackendHarness
) -> None:
    request = run_request(http, tmp_path, "once")
    first, second = (http.post("/v1/runs", json=request, headers={IDEMPOTENCY_KEY: "k"}) for _ in range(2))
    assert first.status_code == second.status_code == 201
    assert first.json()["uid"] == second.json()["uid"]
    changed = http.post("/v1/runs", json=run_request(http, tmp_path, "twice"), headers={IDEMPOTENCY_KEY: "k"})
    assert error_of(changed) == (409, "ConflictError", 22)
    assert error_of(http.post("/v1/runs", json=request)) == (409, "ConflictError", 22)
    assert len([event for event in harness.ledger.events("once") if event.cause == "submitted"]) == 1


def test_what_can_never_run_is_refused_when_it_is_submitted(http: httpx.Client, tmp_path: Path) -> None:
    request = run_request(http, tmp_path, "large", queue="small")
    request["config"] = {**config_of("large", queue="small")}
    request["config"]["scaling"]["num_workers"] = 5  # type: ignore[index]
    response = http.post("/v1/runs", json=request)
    assert error_of(response) == (422, "ResourceError", 6)
    assert "small" in response.json()["error"]["message"]
    missing = {**run_request(http, tmp_path, "missing"), "package": "0" * 64}
    assert error_of(http.post("/v1/runs", json=missing)) == (404, "NotFoundError", 21)
    elsewhere = run_request(http, tmp_path, "elsewhere", address="http://169.254.169.254")
    assert error_of(http.post("/v1/runs", json=elsewhere)) == (422, "ConfigError", 2)
    waits = run_request(http, tmp_path, "waits", depends_on=["run-failed"])
    assert error_of(http.post("/v1/runs", json=waits)) == (409, "ConflictError", 22)


def test_every_fault_of_a_config_is_named_in_one_answer(http: httpx.Client, tmp_path: Path) -> None:
    request = run_request(http, tmp_path, "invalid")
    request["config"]["training"] = {"max_steps": -1, "max_stepz": 3}  # type: ignore[index]
    message = http.post("/v1/runs", json=request).json()["error"]["message"]
    assert "training.max_steps" in message
    assert "did you mean training.max_steps?" in message


def test_logs_are_read_from_the_run_folder_after_the_cluster_has_gone(
    http: httpx.Client, harness: BackendHarness
) -> None:
    log = Path(harness.ledger.run("run-failed").run_folder) / driver_log_key(1)
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\n")
    page = http.get("/v1/runs/run-failed/logs").raise_for_status().json()
    assert [(line["source"], line["text"]) for line in page["lines"]] == [("driver", "one"), ("driver", "two")]
    assert page["ended"] is True
    query = {"cursor": page["cursor"], "source": "driver", "attempt": 1}
    assert http.get("/v1/runs/run-failed/logs", params=query).raise_for_status().json()["lines"] == []
    assert error_of(http.get("/v1/runs/run-queued/logs")) == (409, "ConflictError", 22)
    assert error_of(http.get("/v1/runs/run-failed/logs", params={"attempt": 7})) == (404, "NotFoundError", 21)


def test_usage_sums_up_what_attempts_held(reader: httpx.Client) -> None:
    rows = reader.get("/v1/usage", params={"by": "run", "run_id": "run-failed"}).raise_for_status().json()
    assert rows == [{"key": "run-failed", "attempts": 1, "wall_hours": 1.0, "cpu_hours": 9.0, "gpu_hours": 2.0}]
    assert reader.get("/v1/usage", params={"by": "tag"}).raise_for_status().json()[0]["key"] == "every"
    nothing = reader.get("/v1/usage", params={"run_id": "run-failed", "since_s": 32_000_000_000.0})
    assert nothing.raise_for_status().json() == []
    for since in ("nan", "inf", "-1"):
        assert reader.get("/v1/usage", params={"since_s": since}).status_code == 422


@pytest.mark.integration
def test_queues_show_caps_and_counts_and_those_that_are_configured_no_more(
    http: httpx.Client, harness: BackendHarness
) -> None:
    harness.add("stray", queue="gone")
    response = http.get("/v1/queues").raise_for_status().json()
    queues = {queue["name"]: queue for queue in response["queues"]}
    assert list(queues) == ["default", "gone", "small"]
    assert (queues["default"]["waiting"], queues["default"]["holding"]) == (3, 5)
    assert queues["default"]["runs"]["FAILED"] == 1
    assert queues["small"]["limits"] == {"max_gpus": 4.0, "max_cpus": None, "max_running": None}
    assert queues["small"]["per_user"]["max_running"] == 1
    assert (queues["gone"]["limits"], queues["gone"]["waiting"]) == (None, 1)


def test_health_needs_no_token_and_says_nothing_else(anonymous: httpx.Client) -> None:
    response = anonymous.get("/healthz")
    assert response.status_code == 200
    assert set(response.json()) == {"status", "holds_lease", "version"}
