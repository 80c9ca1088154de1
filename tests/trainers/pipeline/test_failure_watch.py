"""What Ray Train's controller lets the workers start again after, and what it counts."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.controller.state import (
    InitializingState,
    ReschedulingState,
    RestartingState,
    RunningState,
)

from tests.trainers.synthetic import config
from trainers.distributed.coordinator import WAITING, EndRequest, WorkerUpdate
from trainers.distributed.signals import STOP_SIGNAL
from trainers.errors import ConfigError, LostNodeError, LostWorkerError, RegroupError, StoppedError
from trainers.pipeline import ray_engine, regrouping
from trainers.pipeline.ray_engine import MAX_LOSSES, FailureWatch
from trainers.pipeline.root_cause import TooManyFailuresError

DIED = LostWorkerError("rank 1 died")
LEFT = RegroupError("the node of rank 1 is about to be taken away")
GONE = LostNodeError("node 7")


class FakeCoordinator:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.phases: list[str] = []
        self.requests: list[Any] = []
        self.request_stop = SimpleNamespace(remote=lambda: self.requests.append("stop"))
        self.request_regroup = SimpleNamespace(remote=lambda *request: self.requests.append(request))
        self.add_line = SimpleNamespace(remote=self.lines.append)
        self.set_phase = SimpleNamespace(remote=self.phases.append)
        self.controllers: list[Any] = []
        self.set_controller = SimpleNamespace(remote=self.controllers.append)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "lost_nodes", lambda before, wait_s: 0)
    monkeypatch.setattr(ray_engine, "stop_requested", lambda coordinator: False)


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
            coordinator.lines[-1] == f"the workers restart from the last checkpoint ({count} of at most 2): rank 1 died"
        )
    with pytest.raises(TooManyFailuresError):
        fails(failures, DIED)


def test_without_a_limit_they_are_only_told() -> None:
    failures, coordinator = watch(-1)
    for _ in range(9):
        fails(failures, DIED)
    assert coordinator.lines[-1].startswith("the workers restart from the last checkpoint (9): ")


@pytest.mark.parametrize("error", [LEFT, GONE])
def test_an_elastic_run_does_not_count_its_nodes(error: Exception) -> None:
    failures, coordinator = watch(0, {"min": 1, "max": 4})
    for _ in range(9):
        fails(failures, error)
    assert coordinator.lines[-1] == f"the workers restart from the last checkpoint (not counted): {error}"


def test_a_worker_that_went_with_its_node_is_not_counted_either(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = type("DistNetworkError", (RuntimeError,), {})("Connection closed by peer")
    monkeypatch.setattr(ray_engine, "lost_nodes", lambda before, wait_s: len(before & {"b"}))
    failures, coordinator = watch(0, {"min": 1, "max": 4})
    failures.after_worker_group_start(started("a", "b"))
    failures.after_worker_group_poll_status(failed({0: connection}))
    assert "(not counted): training: a node was lost" in coordinator.lines[-1]
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
    assert len(coordinator.lines) == 1
    assert coordinator.phases == [], "others of the group may still store a checkpoint"
    failures.after_controller_state_update(RunningState(), RestartingState(WorkerGroupError("", {1: DIED})))
    assert coordinator.phases == ["waiting"]


def test_a_coordinator_that_has_started_anew_learns_the_controller_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "get_runtime_context", lambda: SimpleNamespace(current_actor="the controller"))
    failures, coordinator = watch(1)
    failures.after_controller_start(None)
    failures.after_controller_state_update(RunningState(), RestartingState(WorkerGroupError("", {1: DIED})))
    assert coordinator.controllers == ["the controller"] * 2


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
    if failures._is_elastic:
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
    monkeypatch.setattr(ray_engine, "stop_requested", lambda coordinator: True)
    with pytest.raises(StoppedError, match="workers failed meanwhile: rank 1 died"):
        watch(9)[0].after_worker_group_poll_status(failed({1: DIED}))


def test_requests_are_sent_until_the_coordinator_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "driver_node_id", lambda: "head")
    coordinator, status = FakeCoordinator(), SimpleNamespace(show=lambda *_, **__: None, rest=lambda: None)
    fit: Any = ray_engine._Fit(None, coordinator, status, config({}))  # type: ignore[arg-type]
    updates = [
        WorkerUpdate([], "stoppable", ("a",), "first"),
        WorkerUpdate([], "stoppable", ("a",), "first", EndRequest("a node goes")),
        # It has started again.
        WorkerUpdate([], None),
        WorkerUpdate([], "working", ("a",), "second"),
    ]
    monkeypatch.setattr(ray_engine, "poll_coordinator", lambda _: updates.pop(0))
    fit._read()
    fit._leaves = ("first", "a node goes")
    for _ in range(2):
        fit._read()
    assert (coordinator.requests, fit.nodes) == ([("a node goes", "first")], {"a"})
    fit._read()
    assert len(coordinator.requests) == 1, "the next group is not asked"
    monkeypatch.setattr(STOP_SIGNAL, "_number", 15)
    updates += [WorkerUpdate([], None), WorkerUpdate([], None, request=EndRequest()), WorkerUpdate([], None)]
    for _ in range(3):
        fit._read()
    assert coordinator.requests[1:] == ["stop", "stop"]


class Waiting:
    """Ray Train waits for room; one of the two nodes of its workers is gone.

    Attributes:
        polls: How often the coordinator is asked, after nodes were, until another node comes. None: none comes.
        asked: Nodes that were asked what is free on them.
    """

    def __init__(self) -> None:
        self.polls: int | None = None
        self.asked: list[str] = []
        self.room = threading.Event()
        self.fit = self.room.wait
        self._updates = [WorkerUpdate([], WAITING, ("a", "b"), "first")]

    def poll(self, coordinator: Any) -> WorkerUpdate | None:
        if self.polls is not None and self.asked:
            self.polls -= 1
            if self.polls == 0:
                self.room.set()
        return self._updates.pop(0) if self._updates else None

    def kill(self, coordinator: Any) -> bool:
        self.room.set()
        return True


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    trainer = Waiting()
    for name in ("GONE_S", "DOUBT_S"):
        monkeypatch.setattr(regrouping, name, 0.0)
    for name in ("LOOK_S", "POLL_S"):
        monkeypatch.setattr(ray_engine, name, 0.01)
    monkeypatch.setattr(ray_engine, "driver_node_id", lambda: "a")
    monkeypatch.setattr(ray_engine, "draining_nodes", set)
    monkeypatch.setattr(ray_engine, "free_resources", dict)
    monkeypatch.setattr(ray_engine, "node_resources", lambda: {"a": {"CPU": 1.0}, "head": {}})
    monkeypatch.setattr(ray_engine, "have_reported", trainer.asked.extend)
    monkeypatch.setattr(ray_engine, "lasting_resources", lambda every, leaving: [{"CPU": 1.0}])
    monkeypatch.setattr(ray_engine, "poll_coordinator", trainer.poll)
    monkeypatch.setattr(ray_engine, "kill_controller", trainer.kill)
    return trainer


def fit_of(waiting: Waiting, *, requeued: bool, workers: Any = 2) -> Any:
    status: Any = SimpleNamespace(show=lambda *_, **__: None, rest=lambda: None)
    changes, trainer = {"scaling.num_workers": workers, "training.global_batch_size": 8}, cast("Any", waiting)
    return ray_engine._Fit(trainer, FakeCoordinator(), status, config(changes), requeued=requeued)


def test_without_room_an_attempt_that_a_queue_starts_again_ends_as_with_a_lost_node(waiting: Waiting) -> None:
    with pytest.raises(LostNodeError, match=r"a node was lost, and with it the room for 2 workers × \(1 CPU\)"):
        fit_of(waiting, requeued=True).wait()
    assert not {"fit", "nodes"} & {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(("requeued", "workers"), [(False, 2), (True, {"min": 2, "max": 4})])
def test_without_room_others_wait_for_a_node(waiting: Waiting, *, requeued: bool, workers: Any) -> None:
    waiting.polls = 20
    assert fit_of(waiting, requeued=requeued, workers=workers).wait() is True
    assert waiting.asked == ["a"], "once in a minute, and only where a worker fits"
