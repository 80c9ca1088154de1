"""Workers whose nodes are taken away, lost and given back: nothing is lost, and nothing is counted."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from tests.integration import recording_task
from tests.integration.driver_process import RayHead, Run
from tests.integration.forked_process import ForkedProcess
from tests.integration.ray_cluster import ray_cluster
from tests.integration.training_trees import write_recipe
from trainers.distributed.preemption_agent import Raylet, drain
from trainers.distributed.preemption_notices import Notice
from trainers.run_folder.journal import Resize

SLOT = {"slot": 1}


@pytest.fixture
def recipe(tones: Path, tmp_path: Path) -> Path:
    """Dropout, and a global batch that no number of workers but one divides."""
    changes: dict[str, Any] = {
        "run.max_failures": 0,
        "checkpoint.num_to_keep": None,
        "training.max_steps": 60,
        "training.save_steps": 20,
        "training.logging_steps": 5,
        "training.per_device_train_batch_size": 3,
        "training.global_batch_size": 7,
        "scaling.num_workers": 2,
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

    def weights(self) -> tuple[int, str]:
        """Step and SHA-256 of the newest checkpoint's weights."""
        last = self.checkpoints()[-1]
        return last.step, last.files["model.safetensors"]["sha256"]


@pytest.fixture
def cluster() -> Iterator[tuple[Cluster, RayHead]]:
    """A head for the driver, and a Ray that notices a lost node within seconds."""
    soon = {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
    with ray_cluster(num_cpus=1, _system_config=soon) as found:
        yield found


@pytest.fixture
def run(cluster: tuple[Cluster, RayHead], recipe: Path, tmp_path: Path) -> RecordedRun:
    return RecordedRun(cluster[1], "taken", str(tmp_path / "runs"), recipe, [], tmp_path / "driver.log")


@pytest.mark.slow
def test_a_drained_node_costs_no_step_and_is_not_counted(cluster: tuple[Cluster, RayHead], run: RecordedRun) -> None:
    nodes = [cluster[0].add_node(num_cpus=1, resources=SLOT) for _ in range(2)]
    calm = replace(run, name="calm")
    calm.hurry()
    calm.start()
    calm.finish()
    run.start()
    run.wait_for(lambda: run.reached(25), "step 25")
    problem = drain(Raylet(nodes[0].node_id, cluster[1].address, {}), Notice("a test", time.time() + 120))
    assert problem is None
    # Only now, since the workers might have been there instead.
    cluster[0].add_node(num_cpus=1, resources=SLOT)
    run.wait_for(lambda: len(run.journal.read().groups) == 2, "second worker group")
    run.hurry()
    run.finish()
    said = run.log.read_text()
    step = next(item.step for item in run.checkpoints() if item.step % 20)
    assert 25 <= step < 60
    assert "is about to be taken away: the workers store a checkpoint and start anew" in said
    assert "the workers restart from the last checkpoint (not counted): the node of rank" in said
    assert f"resuming from checkpoint-{step}-" in said
    assert run.resizes() == ()
    # No step was trained twice.
    assert [line["step"] for line in run.metrics() if "loss" in line] == sorted({*range(5, 61, 5), step})
    assert run.recorded() == calm.recorded()
    assert run.weights() == calm.weights()
    assert run.folder.read_bytes("evaluation/test.json") == calm.folder.read_bytes("evaluation/test.json")


@pytest.mark.slow
def test_a_lost_node_shrinks_an_elastic_group_and_a_returned_one_grows_it(
    cluster: tuple[Cluster, RayHead], run: RecordedRun
) -> None:
    nodes = [cluster[0].add_node(num_cpus=1, resources=SLOT) for _ in range(3)]
    calm = replace(run, name="calm", sets=["training.max_steps=240"])
    calm.hurry()
    calm.start()
    calm.finish()
    run.sets = ["training.max_steps=240", "scaling.num_workers={min: 1, max: 3}"]
    run.start()
    run.wait_for(lambda: run.reached(25), "step 25")
    cluster[0].remove_node(nodes[1], allow_graceful=False)
    run.wait_for(lambda: len(run.resizes()) == 1, "smaller group")
    shrunk = run.resizes()[0]
    cluster[0].add_node(num_cpus=1, resources=SLOT)
    run.wait_for(lambda: len(run.resizes()) == 2, "larger group")
    grown = run.resizes()[1]
    run.hurry()
    run.finish()
    said = run.log.read_text()
    assert (shrunk, grown) == (Resize(20, 3, 2, 1), Resize(grown.step, 2, 3, 1))
    assert "from step 20 on there are 2 workers, before 3" in said
    assert "there is room for 3 workers instead of 2: the workers store a checkpoint and start anew" in said
    assert f"resuming from checkpoint-{grown.step}-" in said
    sizes = {step: size for step, (size, _) in run.recorded().items()}
    assert sizes == {step: 2 if 20 < step <= grown.step else 3 for step in range(1, 241)}
    ids = [read for _, read in run.recorded().values()]
    assert ids == [read for _, read in calm.recorded().values()]
    # 48 clips make 7 steps of 7, the last smaller.
    for epoch in range(34):
        assert sorted(chain.from_iterable(ids[epoch * 7 : epoch * 7 + 7])) == list(range(48))
