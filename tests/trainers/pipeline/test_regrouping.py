from typing import Any

import pytest

from tests.trainers.synthetic import config
from trainers.pipeline.regrouping import SETTLE_S, Regrouping

NODE = {"CPU": 2.0, "memory": 1e9}
HEAD = {"CPU": 1.0}


def regrouping(changes: dict[str, Any] | None = None) -> Regrouping:
    return Regrouping(config(changes or {}).scaling, "head")


def elastic(least: int, most: int, **more: Any) -> Regrouping:
    return regrouping({"scaling.num_workers": {"min": least, "max": most}, "training.global_batch_size": 8, **more})


class TestDraining:
    def test_a_group_is_told_once_that_a_node_of_it_is_taken_away(self) -> None:
        watch, nodes = regrouping(), {"a": NODE, "b": NODE}
        assert watch.reason(["a", "b", "b"], nodes, set(), 0) is None
        assert watch.reason(["a", "b", "b"], nodes, {"b", "c"}, 1) == "the node of rank 1, 2 is about to be taken away"
        assert watch.reason(["a", "b", "b"], nodes, {"b", "c"}, 2) is None
        # The next group is on another one.
        assert watch.reason(["a", "d", "d"], nodes, {"b", "c"}, 3) is None
        assert watch.reason(["a", "d", "d"], nodes, {"b", "d"}, 4) is not None

    def test_the_driver_s_node_counts_and_others_do_not(self) -> None:
        watch = regrouping()
        assert watch.reason(["a"], {}, {"x"}, 0) is None
        assert watch.reason(["a"], {}, {"head"}, 1) == "the node of the driver is about to be taken away"


class TestGrowth:
    def test_room_that_stays_is_taken(self) -> None:
        watch = elastic(1, 6)
        three = {"a": NODE, "b": NODE, "head": HEAD}
        assert watch.reason(["a", "a"], {"a": NODE}, set(), 0) is None
        assert watch.reason(["a", "a"], three, set(), 10) is None
        assert watch.reason(["a", "a"], three, set(), 9.9 + SETTLE_S) is None
        assert watch.reason(["a", "a"], three, set(), 10 + SETTLE_S) == "there is room for 5 workers instead of 2"

    def test_a_node_that_comes_and_goes_is_not_waited_for(self) -> None:
        watch = elastic(1, 6)
        for start in (0.0, 2 * SETTLE_S):
            assert watch.reason(["a", "a"], {"a": NODE, "b": NODE}, set(), start) is None
            assert watch.reason(["a", "a"], {"a": NODE}, set(), start + SETTLE_S) is None

    def test_nodes_without_room_in_truth_are_tried_once(self) -> None:
        watch, nodes = elastic(1, 6), {"a": NODE, "b": NODE}
        asked = [watch.reason(["a", "a"], nodes, set(), now) is not None for now in range(0, 200, 10)]
        assert sum(asked) == 1
        assert watch.reason(["a", "a"], {**nodes, "c": NODE}, set(), 200) is None
        assert watch.reason(["a", "a"], {**nodes, "c": NODE}, set(), 200 + SETTLE_S) is not None

    def test_there_are_never_more_than_the_most(self) -> None:
        nodes = {"a": NODE, "b": NODE}
        for watch in (elastic(1, 3), regrouping({"scaling.num_workers": 3})):
            for now in (0, SETTLE_S, 2 * SETTLE_S):
                assert watch.reason(["a", "a", "b"], nodes, set(), now) is None

    def test_a_node_that_is_taken_away_has_no_room(self) -> None:
        watch = elastic(1, 6)
        for now in (0, SETTLE_S, 2 * SETTLE_S):
            assert watch.reason(["a", "a"], {"a": NODE, "b": NODE}, {"b"}, now) is None

    @pytest.mark.parametrize(("each", "workers"), [({"CPU": 2}, 2), ({"memory": 3e8}, 4), ({"hpu": 1}, None)])
    def test_what_a_worker_takes_decides(self, each: dict[str, float], workers: int | None) -> None:
        watch, nodes = elastic(1, 6, **{"scaling.resources_per_worker": each}), {"a": NODE, "b": NODE}
        assert watch.reason(["a"], nodes, set(), 0) is None
        reason = watch.reason(["a"], nodes, set(), SETTLE_S)
        assert reason == (None if workers is None else f"there is room for {workers} workers instead of 1")
