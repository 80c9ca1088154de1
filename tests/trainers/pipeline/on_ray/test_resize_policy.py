from itertools import pairwise
from typing import Any

import pytest

from tests.trainers.synthetic import config
from trainers.pipeline.on_ray.resize_policy import (
    FIRST_RESOURCE_REPORT_S,
    LOST_CAPACITY_TIMEOUT_S,
    MAX_RESIZE_ATTEMPTS,
    RESOURCE_REPORT_INTERVAL_S,
    STABLE_CAPACITY_S,
    LostCapacity,
    ResizePolicy,
    StaleNodes,
)

NODE = {"CPU": 2.0, "memory": 1e9}
HEAD, FULL = {"CPU": 1.0}, {"CPU": 0.0}


def resize_policy(changes: dict[str, Any] | None = None) -> ResizePolicy:
    return ResizePolicy(config(changes or {}).scaling, "head")


def elastic(least: int, most: int, **more: Any) -> ResizePolicy:
    return resize_policy({"scaling.num_workers": {"min": least, "max": most}, "training.global_batch_size": 8, **more})


class TestDraining:
    def test_a_group_is_told_once_that_a_node_of_it_is_taken_away(self) -> None:
        watch, nodes = resize_policy(), {"a": NODE, "b": NODE}
        assert watch.regroup_reason(["a", "b", "b"], nodes, set(), 0) is None
        assert watch.regroup_reason(["a", "b", "b"], nodes, {"b", "c"}, 1) == "the node of rank 1, 2 is being drained"
        assert watch.regroup_reason(["a", "b", "b"], nodes, {"b", "c"}, 2) is None
        # The next group is on another one.
        assert watch.regroup_reason(["a", "d", "d"], nodes, {"b", "c"}, 3) is None
        assert watch.regroup_reason(["a", "d", "d"], nodes, {"b", "d"}, 4) is not None

    def test_the_driver_s_node_counts_and_others_do_not(self) -> None:
        watch = resize_policy()
        assert watch.regroup_reason(["a"], {}, {"x"}, 0) is None
        assert watch.regroup_reason(["a"], {}, {"head"}, 1) == "the node of the driver is being drained"


class TestGrowth:
    """`free` is what the workers have left; NODE has room for two more."""

    def test_room_that_stays_is_taken(self) -> None:
        watch = elastic(1, 6)
        free = {"a": FULL, "b": NODE, "head": HEAD}
        assert watch.regroup_reason(["a", "a"], {"a": FULL}, set(), 0) is None
        assert watch.regroup_reason(["a", "a"], free, set(), 10) is None
        assert watch.regroup_reason(["a", "a"], free, set(), 9.9 + STABLE_CAPACITY_S) is None
        assert (
            watch.regroup_reason(["a", "a"], free, set(), 10 + STABLE_CAPACITY_S)
            == "resources for 5 workers are available; running with 2"
        )

    def test_a_node_that_comes_and_goes_is_not_waited_for(self) -> None:
        watch = elastic(1, 6)
        for start in (0.0, 2 * STABLE_CAPACITY_S):
            assert watch.regroup_reason(["a", "a"], {"a": FULL, "b": NODE}, set(), start) is None
            assert watch.regroup_reason(["a", "a"], {"a": FULL}, set(), start + STABLE_CAPACITY_S) is None

    def test_what_others_have_is_no_room_whoever_joins_and_leaves(self) -> None:
        watch = elastic(1, 6)
        for now in range(0, 1000, 10):
            others = {f"other-{now}": FULL, "b": FULL}
            assert watch.regroup_reason(["a", "a"], {"a": FULL, **others}, set(), now) is None

    def test_nodes_without_room_in_truth_are_tried_twice_whoever_else_joins(self) -> None:
        watch, free = elastic(1, 6), {"a": FULL, "b": NODE}
        asked = [
            watch.regroup_reason(["a", "a"], {**free, f"other-{now}": FULL}, set(), now) is not None
            for now in range(0, 4000, 10)
        ]
        assert sum(asked) == MAX_RESIZE_ATTEMPTS
        # A group that did grow, and has lost a worker since, tries once more.
        assert watch.regroup_reason(["a", "a", "b"], {"a": FULL, "b": FULL}, set(), 5000) is None
        assert watch.regroup_reason(["a", "a"], free, set(), 6000) is None
        assert watch.regroup_reason(["a", "a"], free, set(), 6000 + STABLE_CAPACITY_S) is not None

    def test_a_group_that_did_not_grow_is_left_alone_for_longer_and_longer(self) -> None:
        watch, asked = elastic(1, 6), []
        for now in range(0, 4000, 10):
            # Other room every minute.
            free = {"a": FULL, f"b-{now // 60}": NODE}
            if watch.regroup_reason(["a", "a"], free, set(), now) is not None:
                asked.append(now)
        pauses = [later - sooner for sooner, later in pairwise(asked)]
        assert len(pauses) == 3
        assert all(least <= pause < least + 60 for least, pause in zip((300, 600, 1200), pauses, strict=True))
        # One that did grow takes more room at once.
        grown, free = ["a", "a", "b"], {"a": FULL, "b": {"CPU": 1.0}}
        assert watch.regroup_reason(grown, free, set(), 4000) is None
        assert watch.regroup_reason(grown, free, set(), 4000 + STABLE_CAPACITY_S) is not None

    def test_there_are_never_more_than_the_most(self) -> None:
        for watch in (elastic(1, 3), resize_policy({"scaling.num_workers": 3})):
            for now in (0, STABLE_CAPACITY_S, 2 * STABLE_CAPACITY_S):
                assert watch.regroup_reason(["a", "a", "b"], {"a": FULL, "b": NODE}, set(), now) is None

    def test_a_node_that_is_taken_away_has_no_room(self) -> None:
        watch = elastic(1, 6)
        for now in (0, STABLE_CAPACITY_S, 2 * STABLE_CAPACITY_S):
            assert watch.regroup_reason(["a", "a"], {"a": FULL, "b": NODE}, {"b"}, now) is None

    @pytest.mark.parametrize(("each", "workers"), [({"CPU": 2}, 2), ({"memory": 3e8}, 4), ({"hpu": 1}, None)])
    def test_what_a_worker_takes_decides(self, each: dict[str, float], workers: int | None) -> None:
        watch, free = elastic(1, 6, **{"scaling.resources_per_worker": each}), {"a": FULL, "b": NODE, "c": HEAD}
        if "memory" in each:
            free["c"] = {"CPU": 1.0, "memory": 3e8}
        assert watch.regroup_reason(["a"], free, set(), 0) is None
        reason = watch.regroup_reason(["a"], free, set(), STABLE_CAPACITY_S)
        assert reason == (None if workers is None else f"resources for {workers} workers are available; running with 1")


class TestLostCapacity:
    """Two workers of 1 CPU each; NODE holds two."""

    def test_room_that_is_gone_for_a_while_is_lost(self) -> None:
        watch = LostCapacity(config({"scaling.num_workers": 2}).scaling)
        assert not watch.is_gone([HEAD, HEAD], 0)
        assert not watch.is_gone([HEAD, {"memory": 1e12}], 1)
        assert not watch.is_gone([HEAD], LOST_CAPACITY_TIMEOUT_S)
        assert watch.is_gone([HEAD], 1 + LOST_CAPACITY_TIMEOUT_S)

    def test_a_node_that_comes_back_meanwhile_is_not_lost(self) -> None:
        watch = LostCapacity(config({"scaling.num_workers": 2}).scaling)
        assert not watch.is_gone([HEAD], 0)
        assert not watch.is_gone([HEAD, NODE], LOST_CAPACITY_TIMEOUT_S)
        assert not watch.is_gone([HEAD], LOST_CAPACITY_TIMEOUT_S + 1)
        assert not watch.is_gone([HEAD], 2 * LOST_CAPACITY_TIMEOUT_S)

    def test_halves_of_two_nodes_hold_no_worker(self) -> None:
        changes = {"scaling.num_workers": 2, "scaling.resources_per_worker": {"CPU": 2}}
        watch = LostCapacity(config(changes).scaling)
        assert not watch.is_gone([{"CPU": 3.0}, {"CPU": 3.0}], 0)
        assert not watch.is_gone([{"CPU": 3.0}, HEAD], 1)
        assert watch.is_gone([{"CPU": 3.0}, {"CPU": -4.0}], 1 + LOST_CAPACITY_TIMEOUT_S)


class TestStaleNodes:
    """Two workers of 1 CPU each; NODE holds two."""

    def test_nodes_with_less_than_all_they_have_are_asked_while_a_group_waits(self) -> None:
        watch = StaleNodes(config({"scaling.num_workers": 2}).scaling)
        total = {"head": HEAD, "empty": NODE, "full": NODE, "half": NODE}
        free = {"head": HEAD, "empty": NODE, "half": {"CPU": 1.0}}
        asked = {now: watch.nodes_to_query(now, total, free, waits=now >= 5) for now in range(200)}
        first = int(5 + FIRST_RESOURCE_REPORT_S)
        times = (first, int(first + RESOURCE_REPORT_INTERVAL_S), int(first + 2 * RESOURCE_REPORT_INTERVAL_S))
        assert {now: nodes for now, nodes in asked.items() if nodes} == {now: ["full", "half"] for now in times}

    def test_each_wait_begins_anew(self) -> None:
        watch = StaleNodes(config({"scaling.num_workers": 2}).scaling)
        waits = {now: now != int(FIRST_RESOURCE_REPORT_S) - 1 for now in range(30)}
        assert not any(watch.nodes_to_query(now, {"full": NODE}, {}, waits=there) for now, there in waits.items())
