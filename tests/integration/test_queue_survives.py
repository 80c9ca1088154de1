"""Runs through a queue whose controller is killed again and again: in order, none lost, none doubled."""

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from ray.job_submission import JobSubmissionClient

from jobs.model import RunState
from jobs.scheduler.limits import QueuesConfig
from tests.integration.driver_process import RayHead
from tests.integration.forked_process import ForkedProcess
from tests.integration.ledger_history import check_each_run, check_never_more, check_order
from tests.integration.service_process import main
from tests.integration.short_jobs import Workspace

TIMEOUT_S = 420.0
# Where what Ray has done and what the ledger knows differ; `test_controller` dies at every point, on a fake.
POINTS = (
    "ledger.admit:before/0",
    "ray.submit:after/0",
    "ledger.end:before/0",
    "logs.archive:after/1",
    "ray.stop:after/0",
)
# Before and after each kind of side effect, each at another pass; those of a stop one after the other, since a
# controller that lives through it stops the run for good.
ALL_POINTS = (
    *POINTS[:-1],
    "ray.submit:before/0",
    "ledger.submitted:after/1",
    "logs.archive:before/0",
    "ledger.end:after/1",
    "ledger.admit:after/0",
    "ray.stop:before/0",
    "ray.stop:after/0",
)
QUEUES = QueuesConfig.model_validate(
    {"queues": {"default": {"max_cpus": 8, "max_running": 4, "per_user": {"max_cpus": 6}}, "small": {"max_cpus": 3}}}
)


class Keeper:
    """Keeps a controller process alive, and kills it."""

    def __init__(self, workspace: Workspace, log: Path):
        """Starts nothing yet."""
        self._workspace, self._log = workspace, log
        self.process: ForkedProcess | None = None

    def start(self, die_at: str | None = None) -> None:
        """Starts a controller that dies at a point, or lives."""
        arguments = ["--database", self._workspace.database, "--packages", str(self._workspace.packages.folder)]
        arguments += ["--queues", str(self._workspace.queues_file)]
        arguments += ["--die-at", die_at] if die_at else []
        self.process = ForkedProcess(main, arguments, environment=os.environ, log=self._log)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition, or for the controller's own death."""
        end = time.monotonic() + TIMEOUT_S
        assert self.process is not None
        while not condition() and self.process.poll() is None:
            assert time.monotonic() < end, f"no {what}:\n{self._log.read_text()[-4000:]}"
            time.sleep(0.1)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("database", "runs_count", "points", "random_kills"),
    [
        pytest.param("sqlite", 10, POINTS, 0, id="sqlite"),
        pytest.param("sqlite", 30, ALL_POINTS, 10, id="sqlite-long", marks=pytest.mark.long),
        pytest.param("postgresql", 30, ALL_POINTS, 10, id="postgresql-long", marks=pytest.mark.long),
    ],
)
def test_runs_survive_a_controller_that_is_killed_everywhere(
    ray_head: RayHead,
    tmp_path: Path,
    database: str,
    runs_count: int,
    points: Sequence[str],
    random_kills: int,
    request: pytest.FixtureRequest,
) -> None:
    url = request.getfixturevalue("postgres_url") if database == "postgresql" else None
    workspace = Workspace(tmp_path, ray_head.dashboard, QUEUES, url)
    chance = random.Random(7)
    # The session's Ray takes each submission id once, whatever ledger it comes from.
    for number in range(runs_count - 1):
        sets = [f"job.priority={chance.choice((0, 0, 5, 10))}", f"scaling.num_workers={chance.choice((1, 1, 2, 4))}"]
        if number % 6 == 5:
            sets = [sets[0], "scaling.num_workers=2", "job.queue=small"]
        user, ms = chance.choice(("ana", "bo")), chance.choice((200, 600, 1500))
        workspace.short(f"{database}-{runs_count}-{number:02}", *sets, user=user, ms=ms)
    # One that is stopped while it runs, so that stopping is interrupted too.
    long = workspace.short(
        f"{database}-{runs_count}-long", "job.priority=20", "scaling.num_workers=1", user="cy", ms=600_000
    )
    keeper = Keeper(workspace, tmp_path / "controller.log")
    try:
        _kill_everywhere(keeper, workspace, points, long.id)
        for _ in range(random_kills):
            keeper.start()
            # Anywhere: in opening the ledger or in the rounds after.
            time.sleep(chance.uniform(0.1, 2.5))
            keeper.kill()
        keeper.start()
        keeper.wait_for(lambda: _all_ended(workspace), "end of all runs")
        assert _all_ended(workspace), keeper._log.read_text()[-4000:]
    finally:
        keeper.kill()
    runs = [workspace.ledger.run(run.id) for run in workspace.ledger.runs(limit=100).runs]
    events = workspace.ledger.events(None, limit=10_000)
    attempts = {run.id: workspace.ledger.attempts(run.id) for run in runs}
    assert len(runs) == runs_count
    assert {run.id: run.state for run in runs if run.state != RunState.SUCCEEDED} == {long.id: RunState.STOPPED}
    check_each_run(runs, events, attempts)
    check_order(runs, events, {workspace.address: workspace.clusters.capacity(workspace.address)}, QUEUES)
    records = workspace.records()
    assert Counter(record["run"] for record in records) == {run.id: 1 for run in runs}, "each ran exactly once"
    jobs = JobSubmissionClient(workspace.address).list_jobs()
    mine = Counter(
        job.submission_id for job in jobs if (job.metadata or {}).get("rayscribe_run_uid") in {r.uid for r in runs}
    )
    assert mine == {f"{run.id}-a1": 1 for run in runs}
    need = {run.id: run.gang.total for run in runs}
    check_never_more([(item["start"], item["end"], need[item["run"]]) for item in records], {"CPU": 8})
    workspace.close()


def _kill_everywhere(keeper: Keeper, workspace: Workspace, points: Sequence[str], long: str) -> None:
    for point in points:
        if point.startswith("ray.stop") and workspace.ledger.run(long).stop_requested_s is None:
            _wait_until_it_runs(keeper, workspace, long)
            workspace.service.stop(long)
        keeper.start(point)
        keeper.wait_for(lambda: False, f"death at {point}")
        assert keeper.process is not None
        assert keeper.process.returncode == -9, f"it did not die at {point}:\n{keeper._log.read_text()[-4000:]}"


def _wait_until_it_runs(keeper: Keeper, workspace: Workspace, long: str) -> None:
    keeper.start()
    keeper.wait_for(lambda: any(record["run"] == long for record in workspace.records()), "start of the long run")
    keeper.kill()


def _all_ended(workspace: Workspace) -> bool:
    return all(run.state.ended for run in workspace.ledger.runs(limit=100).runs)
