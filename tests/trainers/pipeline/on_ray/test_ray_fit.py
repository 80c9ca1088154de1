"""How the driver waits for Ray Train: what it asks of workers and nodes, and when it waits no more."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.trainers.pipeline.on_ray.fake_coordinator import FakeCoordinator
from tests.trainers.synthetic import config
from trainers.distributed.coordinator import WAITING, EndRequest, WorkerUpdate
from trainers.distributed.signals import STOP_SIGNAL
from trainers.errors import LostNodeError
from trainers.pipeline.on_ray import ray_fit, resize_policy


def test_requests_are_sent_until_the_coordinator_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_fit, "driver_node_id", lambda: "head")
    coordinator, status = FakeCoordinator(), SimpleNamespace(update=lambda *_, **__: None, pause=lambda: None)
    fit: Any = ray_fit.RayFit(None, coordinator, status, config({}))  # type: ignore[arg-type]
    updates = [
        WorkerUpdate([], "stoppable", ("a",), "first"),
        WorkerUpdate([], "stoppable", ("a",), "first", EndRequest("a node goes")),
        # It has started again.
        WorkerUpdate([], None),
        WorkerUpdate([], "working", ("a",), "second"),
    ]
    monkeypatch.setattr(ray_fit, "poll_coordinator", lambda _: updates.pop(0))
    fit._read()
    fit._leaves = ("first", "a node goes")
    for _ in range(2):
        fit._read()
    assert (coordinator.requests, fit.nodes) == ([("a node goes", "first")], ("a",))
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
    for name in ("LOST_CAPACITY_TIMEOUT_S", "FIRST_RESOURCE_REPORT_S"):
        monkeypatch.setattr(resize_policy, name, 0.0)
    for name in ("NODE_POLL_S", "POLL_S"):
        monkeypatch.setattr(ray_fit, name, 0.01)
    monkeypatch.setattr(ray_fit, "driver_node_id", lambda: "a")
    monkeypatch.setattr(ray_fit, "draining_nodes", set)
    monkeypatch.setattr(ray_fit, "free_resources", dict)
    monkeypatch.setattr(ray_fit, "node_resources", lambda selects: {"a": {"CPU": 1.0}, "head": {}})
    monkeypatch.setattr(ray_fit, "request_resource_reports", trainer.asked.extend)
    monkeypatch.setattr(ray_fit, "lasting_resources", lambda every, leaving: [{"CPU": 1.0}])
    monkeypatch.setattr(ray_fit, "poll_coordinator", trainer.poll)
    monkeypatch.setattr(ray_fit, "kill_controller", trainer.kill)
    return trainer


def fit_of(waiting: Waiting, *, requeued: bool, workers: Any = 2) -> Any:
    status: Any = SimpleNamespace(update=lambda *_, **__: None, pause=lambda: None)
    changes, trainer = {"scaling.num_workers": workers, "training.global_batch_size": 8}, cast("Any", waiting)
    return ray_fit.RayFit(trainer, FakeCoordinator(), status, config(changes), requeued=requeued)


def test_without_room_an_attempt_that_a_queue_starts_again_ends_as_with_a_lost_node(waiting: Waiting) -> None:
    with pytest.raises(
        LostNodeError, match=r"a node was lost, and the cluster can no longer hold 2 workers × \(1 CPU\)"
    ):
        fit_of(waiting, requeued=True).wait()
    assert not {"fit", "nodes"} & {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(("requeued", "workers"), [(False, 2), (True, {"min": 2, "max": 4})])
def test_without_room_others_wait_for_a_node(waiting: Waiting, *, requeued: bool, workers: Any) -> None:
    waiting.polls = 20
    assert fit_of(waiting, requeued=requeued, workers=workers).wait() is True
    assert waiting.asked == ["a"], "once in a minute, and only where a worker fits"
