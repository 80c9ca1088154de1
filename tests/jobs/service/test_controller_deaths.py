"""A controller that dies at any single point, for both databases."""

from collections import Counter
from pathlib import Path

import pytest

from jobs.model import RunState
from jobs.service.controller import Controller
from tests.jobs.service.controller_harness import LOST_NODE, MAX_ROUNDS, ControllerHarness, harness_on


class Death(BaseException):
    """Ends the controller as a SIGKILL would: nothing catches it."""


@pytest.mark.integration
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def test_a_controller_that_dies_at_any_point_is_continued_without_loss_or_double(
    tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_url") if database == "postgres" else f"sqlite:///{tmp_path / 'ledger.db'}"
    deaths: Counter[str] = Counter()
    with harness_on(url, tmp_path) as harness:
        for number in range(MAX_ROUNDS):
            died = _with_one_death(harness, number)
            if died is None:
                break
            deaths[died] += 1
    points = {"ledger.admit", "ray.submit", "logs.archive", "ledger.end", "ray.stop"}
    assert {f"{point}:{side}" for point in points for side in ("before", "after")} <= set(deaths)
    assert "ledger.submitted:after" in deaths


def _with_one_death(harness: ControllerHarness, after: int) -> str | None:
    """Three runs, one of them stopped and one retried, and a controller that dies at its n-th point."""
    names = [f"r{after}-{letter}" for letter in "abc"]
    for name in names:
        harness.submit(name)
    harness.cluster.ends[f"{names[1]}-a1"] = LOST_NODE
    harness.cluster.lasts[f"{names[2]}-a1"] = 1000
    passed, died = 0, []

    def die(point: str) -> None:
        nonlocal passed
        passed += 1
        if passed > after:
            died.append(point)
            raise Death

    def run_rounds(controller: Controller) -> None:
        harness.run_rounds(controller, lambda: not harness.ledger.run(names[2]).state.waiting)
        harness.ledger.requests.request_stop(names[2], by="ana", at_s=harness.now_s)
        harness.run_rounds(controller)

    try:
        run_rounds(harness.controller(die))
    except Death:
        run_rounds(harness.controller())
    states = [harness.ledger.run(name).state for name in names]
    assert states == [RunState.SUCCEEDED, RunState.SUCCEEDED, RunState.STOPPED]
    harness.check_history()
    assert all(harness.cluster.submits.count(job) <= 2 for job in harness.cluster.jobs)
    return died[0] if died else None
