"""What a worker gives to Ray's metrics, and gives again, since Ray drops what nobody sets again."""

from typing import Any

import pytest
from ray.util import metrics

from trainers.distributed.coordinator import Coordinator, EndRequest
from trainers.distributed.gauges import LOSS, error_rate
from trainers.training import ray_workers
from trainers.training.ray_workers import RaySession


def test_a_number_is_labeled_and_repeated_as_it_was_last(monkeypatch: pytest.MonkeyPatch) -> None:
    was_set: list[tuple[str, float, dict[str, str]]] = []

    class Recorded:
        """A gauge of Ray."""

        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]):
            self.name, self.keys = name, tag_keys

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert set(tags) == set(self.keys)
            was_set.append((self.name, value, tags))

    monkeypatch.setattr(metrics, "Gauge", Recorded)
    session: Any = RaySession(1, 2, 0, None, "digits", 3)
    own = {"run": "digits", "attempt": "3", "rank": "1"}
    session.set_gauge(error_rate("wer"), 0.5, split="validation")
    session.set_gauge(error_rate("wer"), 0.25, split="validation")
    session.set_gauge_from_main(LOSS, 1.0)
    assert was_set == [("rayscribe_wer_ratio", wer, {**own, "split": "validation"}) for wer in (0.5, 0.25)]
    session.republish_gauges()
    assert was_set[2:] == was_set[1:2]


def test_a_regroup_stays_one_when_the_coordinator_forgets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[EndRequest | None] = [None, EndRequest("a node goes"), None]
    monkeypatch.setattr(ray_workers, "end_request", lambda coordinator: said.pop(0))
    session = RaySession(0, 2, 0)
    assert [session.stop_requested() for _ in range(2)] == [False, True]
    assert session.regroup_reason() == "a node goes"
    said += [EndRequest()]
    assert session.regroup_reason() is None, "a stop that came meanwhile is a stop"


def test_a_request_to_leave_is_of_one_group_and_a_stop_of_all() -> None:
    coordinator = Coordinator()
    coordinator.begin(("a",), "first")
    coordinator.request_regroup("a node goes", "first")
    assert coordinator.poll().request == EndRequest("a node goes")
    coordinator.begin(("a",), "second")
    coordinator.request_regroup("a node goes", "first")
    assert coordinator.end_request() is None
    coordinator.request_stop()
    coordinator.begin(("a",), "third")
    assert coordinator.end_request() == EndRequest()
    # One that has started again does not know which group works.
    fresh = Coordinator()
    fresh.request_regroup("a node goes", "third")
    assert fresh.end_request() == EndRequest("a node goes")
