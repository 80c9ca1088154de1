"""What Ray Train's controller lets the workers start again after, and what it counts."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayTaskError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.controller.state import (
    InitializingState,
    ReschedulingState,
    RestartingState,
    RunningState,
)

from tests.trainers.pipeline.on_ray.fake_coordinator import FakeCoordinator
from tests.trainers.synthetic import config
from trainers.config.schema import ScriptConfig
from trainers.distributed.coordinator import RESTART
from trainers.distributed.restart_policy import MAX_LOSSES
from trainers.distributed.root_cause import TooManyFailuresError
from trainers.errors import (
    ConfigError,
    LostNodeError,
    LostWorkerError,
    RayscribeError,
    RegroupError,
    ResourceError,
    ScriptError,
    StoppedError,
)
from trainers.pipeline.on_ray import failure_watch
from trainers.pipeline.on_ray.failure_watch import FailureWatch

DIED = LostWorkerError("rank 1 died")
LEFT = RegroupError("the node of rank 1 is being drained")
GONE = LostNodeError("node 7")


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_watch, "lost_nodes", lambda before, wait_s: 0)
    monkeypatch.setattr(failure_watch, "stop_requested", lambda coordinator: False)


def failed(errors: dict[int, Exception]) -> Any:
    """A poll of the workers."""
    return SimpleNamespace(errors=errors)


def started(*nodes: str) -> Any:
    """A worker group with a rank on each of these nodes."""
    workers = [SimpleNamespace(metadata=SimpleNamespace(node_id=node)) for node in nodes]
    return SimpleNamespace(get_workers=lambda: workers)


def fails(failures: FailureWatch, error: Exception) -> None:
    """Another group starts and fails."""
    failures.after_worker_group_start(started("a", "b"))
    failures.after_worker_group_poll_status(failed({1: error}))


def watch(max_failures: int, workers: Any = 2) -> tuple[FailureWatch, FakeCoordinator]:
    coordinator = FakeCoordinator()
    changes = {"run.max_failures": max_failures, "scaling.num_workers": workers, "training.global_batch_size": 8}
    return FailureWatch(coordinator, config(changes)), coordinator


def test_failures_are_counted_until_there_are_too_many() -> None:
    failures, coordinator = watch(2)
    for count in (1, 2):
        fails(failures, DIED)
        assert (
            coordinator.events[-1]
            == f"the workers restart from the last checkpoint ({count} of at most 2): rank 1 died"
        )
    with pytest.raises(TooManyFailuresError):
        fails(failures, DIED)


def test_the_next_group_is_told_why_in_one_line() -> None:
    failures, coordinator = watch(2)
    fails(failures, LostWorkerError("rank 1: the program ended by SIGKILL:\n  its last line"))
    assert coordinator.posts == {RESTART: "rank 1: the program ended by SIGKILL"}


def test_without_a_limit_they_are_only_told() -> None:
    failures, coordinator = watch(-1)
    for _ in range(9):
        fails(failures, DIED)
    assert coordinator.events[-1].startswith("the workers restart from the last checkpoint (9): ")


@pytest.mark.parametrize("error", [LEFT, GONE])
def test_an_elastic_run_does_not_count_its_nodes(error: Exception) -> None:
    failures, coordinator = watch(0, {"min": 1, "max": 4})
    for _ in range(9):
        fails(failures, error)
    assert coordinator.events[-1] == f"the workers restart from the last checkpoint (not counted): {error}"


def test_a_worker_that_went_with_its_node_is_not_counted_either(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = type("DistNetworkError", (RuntimeError,), {})("Connection closed by peer")
    monkeypatch.setattr(failure_watch, "lost_nodes", lambda before, wait_s: len(before & {"b"}))
    failures, coordinator = watch(0, {"min": 1, "max": 4})
    failures.after_worker_group_start(started("a", "b"))
    failures.after_worker_group_poll_status(failed({0: connection}))
    assert "(not counted): training: a node was lost" in coordinator.events[-1]
    with pytest.raises(TooManyFailuresError):
        watch(0)[0].after_worker_group_poll_status(failed({0: connection}))
    # A node that has none of the workers explains nothing.
    failures.after_worker_group_start(started("a", "a"))
    with pytest.raises(TooManyFailuresError):
        failures.after_worker_group_poll_status(failed({0: connection}))


def test_nodes_that_are_lost_without_progress_end_an_elastic_run() -> None:
    failures, _ = watch(0, {"min": 1, "max": 4})
    for progress in ("checkpoint", "left with one", "none"):
        for _ in range(MAX_LOSSES):
            fails(failures, GONE)
        if progress == "checkpoint":
            failures.after_report(None, None)
        elif progress == "left with one":
            fails(failures, LEFT)
    with pytest.raises(TooManyFailuresError):
        fails(failures, GONE)


def test_a_group_is_decided_about_once_and_waits_when_it_is_gone() -> None:
    failures, coordinator = watch(1)
    failures.after_worker_group_start(started("a", "b"))
    for _ in range(9):
        failures.after_worker_group_poll_status(failed({1: DIED}))
    assert len(coordinator.events) == 1
    assert coordinator.phases == [], "others of the group may still store a checkpoint"
    failures.after_controller_state_update(RunningState(), RestartingState(WorkerGroupError("", {1: DIED})))
    assert coordinator.phases == ["waiting"]


def test_a_coordinator_that_has_started_anew_learns_the_controller_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_watch, "get_runtime_context", lambda: SimpleNamespace(current_actor="the controller"))
    failures, coordinator = watch(1)
    failures.after_controller_start(None)
    failures.after_controller_state_update(RunningState(), RestartingState(WorkerGroupError("", {1: DIED})))
    assert [pickle.loads(each) for each in coordinator.controllers] == ["the controller"] * 2


@pytest.mark.parametrize("workers", [2, {"min": 1, "max": 4}])
@pytest.mark.parametrize("error", [ResourceError("a build for CPU"), ModuleNotFoundError("No module named 'trainers'")])
def test_a_group_that_would_not_start_the_next_time_either_is_not_started_again(workers: Any, error: Exception) -> None:
    failures, _ = watch(9, workers)
    raised = RayTaskError("check", "Traceback…", error).as_instanceof_cause()
    with pytest.raises(RayscribeError, match=str(error)) as ended:
        failures.after_controller_state_update(InitializingState(), ReschedulingState(ControllerError(raised)))
    assert ended.value.final


@pytest.mark.parametrize(("workers", "starts"), [({"min": 1, "max": 4}, 2), (2, 9)])
def test_an_elastic_group_that_does_not_start_has_a_limit_and_a_wait_for_room_has_none(
    workers: Any, starts: int
) -> None:
    failures, _ = watch(2, workers)

    def does_not_start(error: Exception) -> None:
        failures.after_controller_state_update(InitializingState(), ReschedulingState(ControllerError(error)))

    for _ in range(9):
        does_not_start(WorkerGroupStartupTimeoutError(2))
    for _ in range(starts):
        does_not_start(WorkerGroupStartupFailedError("a worker failed to initialize"))
    if failures._policy.is_elastic:
        with pytest.raises(ControllerError):
            does_not_start(WorkerGroupStartupFailedError("a worker failed to initialize"))


def test_a_fixed_number_counts_lost_nodes_and_not_those_that_it_left() -> None:
    failures, _ = watch(0)
    fails(failures, LEFT)
    with pytest.raises(TooManyFailuresError):
        fails(failures, GONE)


def test_what_would_fail_again_and_a_stop_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        watch(9)[0].after_worker_group_poll_status(failed({0: ConfigError("x is 1"), 1: DIED}))
    monkeypatch.setattr(failure_watch, "stop_requested", lambda coordinator: True)
    with pytest.raises(StoppedError, match="workers failed meanwhile: rank 1 died"):
        watch(9)[0].after_worker_group_poll_status(failed({1: DIED}))


def test_a_program_that_fails_starts_again_as_often_as_its_recipe_says_whatever_else_was_lost() -> None:
    script = {"command": ["train.py"], "max_restarts": 2}
    program = ScriptConfig.model_validate({"trainer": "script", "run": {"max_failures": 1}, "script": script})
    failures = FailureWatch(FakeCoordinator(), program)
    error = ScriptError.of("rank 0: ended with exit code 7", 7, 1.0, final=False)
    for each in (error, DIED, error):
        fails(failures, each)
    with pytest.raises(ScriptError):
        fails(failures, error)
