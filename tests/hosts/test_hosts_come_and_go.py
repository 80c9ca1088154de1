"""Hosts that a cloud takes away with notice, and a training that goes on with the hosts that are there."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

import pytest

from jobs.model import Cause, RunState
from tests.cluster_configs.providers.metadata_server import metadata_server
from tests.hosts.network import REPOSITORY
from tests.hosts.ray_hosts import RayHosts
from tests.hosts.recorded_runs import RecordedRuns
from tests.hosts.runs import MAX_STEPS, ended_well, journal_of

DURING, CLIPS = 13, 48
# Two workers do not fit on one host.
ELASTIC = (
    "scaling.num_workers={min: 1, max: 2}",
    "scaling.placement_strategy=SPREAD",
    "scaling.resources_per_worker={CPU: 2}",
)
STEPS, BATCH = 300, 8


@pytest.fixture
def runs(hosts: RayHosts, tmp_path: Path) -> Iterator[RecordedRuns]:
    made = RecordedRuns(hosts, tmp_path / "runs")
    yield made
    made.close()


def test_a_host_that_the_cloud_takes_away_stores_a_checkpoint_first(
    hosts: RayHosts, runs: RecordedRuns, calm: str, tmp_path: Path
) -> None:
    runs.submit("taken-away")
    runs.until_step("taken-away", DURING)
    with metadata_server("aws", hosts.network.gateway) as cloud:
        cloud.announce((datetime.now(UTC) + timedelta(minutes=2)).isoformat())
        agent = f"cd {REPOSITORY} && exec {sys.executable}"
        agent += f" -m trainers.distributed.preemption_agent --provider aws --metadata-url {cloud.url}"
        with hosts.workers[0].spawn("sh", "-c", agent, log=tmp_path / "agent.log") as process:
            runs.drive.until(lambda: process.poll() is not None, "end of the drained node")
    assert (tmp_path / "agent.log").read_text().endswith("is drained\n")
    runs.hurry()
    # There is no room before Ray runs on the host again, and the run may wait for that in the queue.
    assert set(ended_well(runs, "taken-away", calm)[:-1]) <= {Cause.NODE_LOST}
    assert len(journal_of(hosts, "taken-away").read().groups) > 1
    # Their checkpoint was that of the last step.
    assert runs.trained_twice() == []
    assert sorted(runs.recorded()) == list(range(1, MAX_STEPS + 1))


def test_a_lost_host_shrinks_an_elastic_group_and_a_returned_one_grows_it(hosts: RayHosts, runs: RecordedRuns) -> None:
    runs.submit("elastic", *ELASTIC, f"training.max_steps={STEPS}", f"training.global_batch_size={BATCH}")
    journal = journal_of(hosts, "elastic")
    runs.until_step("elastic", DURING)
    with hosts.workers[0].unplugged():
        hosts.workers[0].kill()
        runs.drive.until(lambda: len(journal.read().resizes) == 1, "smaller group")
    # Ray is started on it again by the head.
    runs.drive.until(lambda: len(journal.read().resizes) == 2, "larger group")
    runs.hurry()
    run = runs.drive.until_ended("elastic")
    assert run.state == RunState.SUCCEEDED, run.reason
    shrunk, grown = journal.read().resizes
    assert (shrunk.before, shrunk.after, grown.before, grown.after) == (2, 1, 1, 2)
    recorded = runs.recorded()
    sizes = {step: size for step, (size, _) in recorded.items()}
    assert sizes == {step: 1 if shrunk.step < step <= grown.step else 2 for step in range(1, STEPS + 1)}
    in_epoch = CLIPS // BATCH
    for epoch in range(STEPS // in_epoch):
        steps = range(epoch * in_epoch + 1, (epoch + 1) * in_epoch + 1)
        assert sorted(chain.from_iterable(recorded[step][1] for step in steps)) == list(range(CLIPS))
