"""Builders of runs and attempts for tests; a test only gives the fields that it is about."""

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from jobs.ledger import Ledger
from jobs.model import Attempt, AttemptState, Gang, Run, RunState, submission_id_of

GANG = Gang(num_workers=2, resources_per_worker={"CPU": 4.0, "GPU": 1.0}, extra={"CPU": 1.0})
TIMEOUT_S = 60.0


def make_run(run_id: str, **fields: Any) -> Run:
    """A run as it is submitted, by Ana at second 1000."""
    submitted_s = fields.pop("submitted_s", 1000.0)
    values: dict[str, Any] = {
        "id": run_id,
        "uid": uuid4().hex,
        "user": "ana",
        "queue": "default",
        "priority": 0,
        "address": "http://127.0.0.1:8265",
        "config": {"run": {"name": run_id}, "training": {"max_steps": 600, "learning_rate": 1e-4}, "job": {}},
        "package": "0" * 64,
        "gang": GANG,
        "tags": [],
        "depends_on": [],
        "max_retries": 3,
        "run_folder": f"s3://bucket/runs/{run_id}",
        "submitted_s": submitted_s,
        "queued_s": submitted_s,
        "updated_s": submitted_s,
    }
    return Run(**{**values, **fields})


def make_attempt(run_id: str, number: int = 1, **fields: Any) -> Attempt:
    """An attempt that has just been decided, at second 2000."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "number": number,
        "submission_id": submission_id_of(run_id, number),
        "state": AttemptState.SUBMITTING,
        "gang": GANG,
        "created_s": 2000.0,
    }
    return Attempt(**{**values, **fields})


def add(ledger: Ledger, run_id: str, **fields: Any) -> Run:
    """Submits a run."""
    return ledger.requests.add_run(make_run(run_id, **fields), text="submitted by ana")


def move_to(ledger: Ledger, run: Run, state: RunState, **fields: Any) -> Run:
    """Moves a run to a state, through those in between."""
    with ledger.write() as writer:
        for step in _path(run.state, state):
            run = writer.change(run, cause="test", text=f"now {step}", state=step, at_s=run.updated_s + 1.0)
        if fields:
            run = writer.change(run, cause="test", text="fields", at_s=run.updated_s, event=False, **fields)
    return run


def add_in_state(ledger: Ledger, run_id: str, state: RunState, **fields: Any) -> Run:
    """Submits a run and moves it to a state."""
    return move_to(ledger, add(ledger, run_id, **fields), state)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition, with a timeout."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, f"timed out: {what}"
        time.sleep(0.02)


def _path(before: RunState, after: RunState) -> list[RunState]:
    if before == after:
        return []
    direct = after == RunState.SETTING_UP or (before.waiting and after in (RunState.FAILED, RunState.STOPPED))
    return [after] if direct or before.holding else [RunState.SETTING_UP, after]
