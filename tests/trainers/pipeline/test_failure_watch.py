"""What Ray Train's controller lets the workers start again after, and what it counts."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainers.synthetic import config
from trainers.errors import ConfigError, LostNodeError, LostWorkerError, RegroupError, StoppedError
from trainers.pipeline import ray_engine
from trainers.pipeline.ray_engine import FailureWatch
from trainers.pipeline.root_cause import TooManyFailuresError

DIED = LostWorkerError("rank 1 died")
LEFT = RegroupError("the node of rank 1 is about to be taken away")
GONE = LostNodeError("node 7")


class FakeCoordinator:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.phases: list[str] = []
        self.add_line = SimpleNamespace(remote=self.lines.append)
        self.set_phase = SimpleNamespace(remote=self.phases.append)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "living_nodes", lambda: {"a", "b"})
    monkeypatch.setattr(ray_engine, "lost_nodes", lambda before, wait_s: 0)
    monkeypatch.setattr(ray_engine, "stop_requested", lambda coordinator: False)


def watch(max_failures: int, workers: Any = 2) -> tuple[FailureWatch, FakeCoordinator]:
    coordinator = FakeCoordinator()
    changes = {"run.max_failures": max_failures, "scaling.num_workers": workers, "training.global_batch_size": 8}
    return FailureWatch(coordinator, config(changes)), coordinator


def test_failures_are_counted_until_there_are_too_many() -> None:
    failures, coordinator = watch(2)
    for count in (1, 2):
        failures.after_exception(None, {1: DIED})
        assert (
            coordinator.lines[-1] == f"the workers restart from the last checkpoint ({count} of at most 2): rank 1 died"
        )
    with pytest.raises(TooManyFailuresError):
        failures.after_exception(None, {1: DIED})
    assert coordinator.phases == ["waiting"] * 2


def test_without_a_limit_they_are_only_told() -> None:
    failures, coordinator = watch(-1)
    for _ in range(9):
        failures.after_exception(None, {1: DIED})
    assert coordinator.lines[-1].startswith("the workers restart from the last checkpoint (9): ")


@pytest.mark.parametrize("error", [LEFT, GONE])
def test_an_elastic_run_does_not_count_its_nodes(error: Exception) -> None:
    failures, coordinator = watch(0, {"min": 1, "max": 4})
    for _ in range(9):
        failures.after_exception(None, {0: error})
    assert coordinator.lines[-1] == f"the workers restart from the last checkpoint (not counted): {error}"


def test_a_worker_that_went_with_its_node_is_not_counted_either(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = type("DistNetworkError", (RuntimeError,), {})("Connection closed by peer")
    monkeypatch.setattr(ray_engine, "lost_nodes", lambda before, wait_s: 1)
    failures, coordinator = watch(0, {"min": 1, "max": 4})
    failures.after_exception(None, {0: connection})
    assert "(not counted): training: a node was lost" in coordinator.lines[-1]
    with pytest.raises(TooManyFailuresError):
        watch(0)[0].after_exception(None, {0: connection})


def test_a_fixed_number_counts_lost_nodes_and_not_those_that_it_left() -> None:
    failures, _ = watch(0)
    failures.after_exception(None, {0: LEFT})
    with pytest.raises(TooManyFailuresError):
        failures.after_exception(None, {0: GONE})


def test_what_would_fail_again_and_a_stop_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        watch(9)[0].after_exception(None, {0: ConfigError("x is 1"), 1: DIED})
    monkeypatch.setattr(ray_engine, "stop_requested", lambda coordinator: True)
    with pytest.raises(StoppedError, match="workers failed meanwhile: rank 1 died"):
        watch(9)[0].after_exception(None, {1: DIED})
