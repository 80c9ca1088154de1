"""Workers whose nodes are taken away and given back: no step is lost, and nothing is counted.

A lost node, and one that is taken away from a fixed number of workers: tests/hosts/test_hosts_come_and_go.py.
"""

import time
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from cluster_configs.providers.provider import Notice
from tests.integration import recording_task
from tests.integration.driver_process import RayHead, Run
from tests.integration.forked_process import ForkedProcess
from tests.integration.ray_cluster import ray_cluster
from tests.integration.training_trees import write_recipe
from trainers.distributed.preemption_agent import Raylet, drain
from trainers.run_folder.journal import Resize

SLOT = {"slot": 1}
MAX_STEPS, DURING = 160, 13


@pytest.fixture
def recipe(tones: Path, tmp_path: Path) -> Path:
    """Dropout, and a global batch that no number of workers but one divides."""
    changes: dict[str, Any] = {
        "run.max_failures": 0,
        "checkpoint.num_to_keep": None,
        "training.max_steps": MAX_STEPS,
        "training.save_steps": 20,
        "training.logging_steps": 5,
        "training.per_device_train_batch_size": 3,
        "training.global_batch_size": 7,
        "scaling.num_workers": {"min": 1, "max": 3},
        "scaling.resources_per_worker": {"CPU": 1, **SLOT},
    }
    return write_recipe(tmp_path / "recipe.yaml", tones, changes)


class RecordedRun(Run):
    """A run whose workers write down what they read."""

    @cached_property
    def lines(self) -> Path:
        """Where they do."""
        folder = Path(self.storage_path) / f"{self.name}-lines"
        folder.mkdir(parents=True)
        return folder

    def start(self) -> None:
        """Starts a driver."""
        self.driver = ForkedProcess(
            recording_task.main, [str(self.lines), *self.arguments], environment=self.environment, log=self.log
        )

    def hurry(self) -> None:
        """From now on steps take no longer than they need."""
        (self.lines / recording_task.HURRY).touch()

    def recorded(self) -> dict[int, tuple[int, list[int]]]:
        """See `recording_task.recorded`."""
        return recording_task.recorded(self.lines)

    def resizes(self) -> tuple[Resize, ...]:
        """Changes of the number of workers."""
        return self.journal.read().resizes


@pytest.fixture
def cluster() -> Iterator[tuple[Cluster, RayHead]]:
    """A head for the driver, and a Ray that notices a lost node within seconds."""
    soon = {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
    with ray_cluster(num_cpus=1, _system_config=soon) as found:
        yield found


@pytest.fixture
def run(cluster: tuple[Cluster, RayHead], recipe: Path, tmp_path: Path) -> RecordedRun:
    storage = str(tmp_path / "runs")
    return RecordedRun(cluster[1], "taken", storage, recipe, [], tmp_path / "driver.log", poll_s=0.5)


@pytest.mark.timeout(1800)
@pytest.mark.long
def test_a_drained_node_shrinks_an_elastic_group_and_another_grows_it_at_no_step_of_cost(
    cluster: tuple[Cluster, RayHead], run: RecordedRun
) -> None:
    nodes = [cluster[0].add_node(num_cpus=1, resources=SLOT) for _ in range(3)]
    run.start()
    run.wait_for(lambda: run.reached(DURING), f"step {DURING}")
    assert drain(Raylet(nodes[1].node_id, cluster[1].address, {}), Notice("a test", time.time() + 120)) is None
    run.wait_for(lambda: len(run.resizes()) == 1, "smaller group")
    # Only now, since the group might have taken it at once.
    cluster[0].add_node(num_cpus=1, resources=SLOT)
    run.wait_for(lambda: len(run.resizes()) == 2, "larger group")
    run.hurry()
    run.finish()
    shrunk, grown = run.resizes()
    assert (shrunk, grown) == (Resize(shrunk.step, 3, 2, 1), Resize(grown.step, 2, 3, 1))
    said = run.log.read_text()
    assert "is being drained: saving a checkpoint and restarting the workers" in said
    assert "the workers restart from the last checkpoint (not counted): the node of rank" in said
    assert f"from step {shrunk.step} on, 2 workers train, before 3" in said
    assert (
        "resources for 3 workers are available; running with 2: saving a checkpoint and restarting the workers" in said
    )
    for step in (shrunk.step, grown.step):
        assert f"resuming from checkpoint-{step}-" in said
    assert recording_task.trained_twice(run.lines) == []
    sizes = {step: size for step, (size, _) in run.recorded().items()}
    assert DURING <= shrunk.step < grown.step
    assert sizes == {step: 2 if shrunk.step < step <= grown.step else 3 for step in range(1, MAX_STEPS + 1)}
    ids = [read for _, read in run.recorded().values()]
    # 48 clips make 7 steps of 7, the last smaller.
    for epoch in range(MAX_STEPS // 7):
        assert sorted(chain.from_iterable(ids[epoch * 7 : epoch * 7 + 7])) == list(range(48))
