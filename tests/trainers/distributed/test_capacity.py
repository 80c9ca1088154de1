"""The capacity of a cluster is compared with what the workers of a recipe need."""

from typing import Any

import pytest
import ray

from tests.trainers.synthetic import config
from trainers.distributed import ray_connection
from trainers.errors import ResourceError
from trainers.pipeline.on_ray.resize_policy import LostCapacity


class TestCapacity:
    """Compares what the cluster can hold at its largest with what the workers ask for."""

    @pytest.fixture(autouse=True)
    def small_cluster(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            ray_connection, "largest_cluster", lambda selects: {"CPU": 8.0, "GPU": 2.0, "accelerator_type:T4": 1.0}
        )

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"scaling.num_workers": 3, "scaling.use_gpu": True}, " 3 × 1 GPU = 3 GPU, but the cluster has 2"),
            (
                {"scaling.num_workers": 2, "scaling.resources_per_worker": {"CPU": 6}},
                " 2 × 6 CPU = 12 CPU, but the cluster has 8",
            ),
            (
                {"scaling.num_workers": {"min": 9, "max": 12}, "training.global_batch_size": 16},
                ".min 9 × 1 CPU = 9 CPU, but the cluster has 8",
            ),
            ({"scaling.resources_per_worker": {"rack": 1}}, " 1 × 1 rack = 1 rack, but the cluster has 0"),
            (
                {"scaling.use_gpu": True, "scaling.accelerator_type": "A100"},
                " 1 × 0.001 accelerator_type:A100 = 0.001 accelerator_type:A100, but the cluster has 0 and cannot grow "
                "beyond: set scaling.accelerator_type to one that it has (T4), ",
            ),
        ],
    )
    def test_more_than_it_can_ever_hold_is_refused_with_the_arithmetic(
        self, changes: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(ResourceError) as caught:
            ray_connection.check_capacity(config(changes))
        assert f"scaling.num_workers{words}" in str(caught.value)
        assert "or use a larger cluster" in str(caught.value)
        assert "at most 0" not in str(caught.value)

    @pytest.mark.parametrize("workers", [1, 2, {"min": 2, "max": 4}])
    def test_what_fits_is_taken(self, workers: Any) -> None:
        changes = {"scaling.num_workers": workers, "scaling.use_gpu": True, "training.global_batch_size": 8}
        ray_connection.check_capacity(config(changes))


def test_a_cluster_whose_pools_are_empty_holds_what_its_head_says_it_grows_to(monkeypatch: pytest.MonkeyPatch) -> None:
    head = {"CPU": 4.0, "node:__internal_head__": 1.0}
    node = {"NodeID": "head", "Alive": True, "Resources": head, "Labels": {"pool": "head"}}
    monkeypatch.setattr(ray, "nodes", lambda: [node])
    four = config({"scaling.num_workers": 4, "scaling.use_gpu": True, "scaling.resources_per_worker": {"GPU": 4}})
    monkeypatch.delenv("RAYSCRIBE_GROWS_TO", raising=False)
    with pytest.raises(ResourceError, match=r"set scaling.use_gpu: false and .*: 0, .* RAYSCRIBE_GROWS_TO=GPU=…"):
        ray_connection.check_capacity(four)
    assert LostCapacity(four.scaling).is_gone(ray_connection.lasting_resources({"head": head}, set()), 0) is False
    monkeypatch.setenv("RAYSCRIBE_GROWS_TO", "CPU=544,GPU=16")
    ray_connection.check_capacity(four)
    room = LostCapacity(four.scaling)
    assert not any(room.is_gone(ray_connection.lasting_resources({"head": head}, set()), now) for now in (0.0, 1000.0))


def test_gpus_that_nobody_has_asked_for_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = {"NodeID": "a", "Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}, "Labels": {}}
    monkeypatch.setattr(ray, "nodes", lambda: [node])
    ray_connection.check_capacity(config({"scaling.accelerator": "cpu"}))
    assert capsys.readouterr().out == ""
    ray_connection.check_capacity(config({}))
    assert "warning: no worker requests a GPU, but the cluster has 1: set scaling.use_gpu" in capsys.readouterr().out


def test_only_nodes_that_the_recipe_selects_by_their_labels_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = {"a": "cheap", "b": "fast"}
    nodes = [{"NodeID": n, "Alive": True, "Resources": {"CPU": 2.0}, "Labels": {"pool": p}} for n, p in pools.items()]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    two = {"scaling.num_workers": 2, "scaling.resources_per_worker": {"CPU": 2}}
    ray_connection.check_capacity(config(two))
    with pytest.raises(ResourceError, match=r"scaling.label_selector {'pool': '!cheap'} selects, has 2 and"):
        ray_connection.check_capacity(config({**two, "scaling.label_selector": {"pool": "!cheap"}}))
    assert ray_connection.node_resources(config({"scaling.label_selector": {"pool": "fast"}}).scaling.selects) == {
        "b": {"CPU": 2.0}
    }
