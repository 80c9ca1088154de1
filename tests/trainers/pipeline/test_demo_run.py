import pytest

from trainers.config.loader import build_config, read_yaml
from trainers.config.schema import TrainConfig
from trainers.pipeline.demo_run import NOTICE, RECIPE, place_demo

GIB = 2**30
NODE = {
    "CPU": 4.0,
    "memory": 64.0 * GIB,
    "node:10.0.0.5": 1.0,
    "node:__internal_head__": 1.0,
    "object_store_memory": 1e9,
}


@pytest.fixture(scope="module")
def recipe() -> TrainConfig:
    return build_config(read_yaml(RECIPE), origin="demo")


@pytest.mark.parametrize(
    ("changes", "workers"),
    [
        pytest.param({}, 3, id="one CPU is left for Ray Data"),
        pytest.param({"CPU": 2.0}, 1, id="two CPUs"),
        pytest.param({"CPU": 1.0}, 1, id="one CPU is enough"),
        pytest.param({"CPU": 8.5}, 7, id="half a CPU holds no worker"),
        pytest.param({"CPU": 256.0}, 32, id="no more workers than utterances in a step"),
        pytest.param({"CPU": 16.0, "memory": 5.5 * GIB}, 5, id="memory for five"),
        pytest.param({"memory": 0.5 * GIB}, 1, id="at least one worker"),
        pytest.param({"CPU": 0.0}, 0, id="a head that takes no work"),
        pytest.param({"GPU": 8.0}, 3, id="GPUs are not used"),
    ],
)
def test_as_many_workers_as_fit_on_the_node(recipe: TrainConfig, changes: dict[str, float], workers: int) -> None:
    placement = place_demo(recipe, {**NODE, **changes})
    assert placement.num_workers == workers
    assert str(workers or "driver") in placement.message


@pytest.mark.parametrize("cpus", [0, 1, 2, 3, 4, 6, 17, 33, 200])
def test_the_global_batch_of_the_recipe_holds(recipe: TrainConfig, cpus: int) -> None:
    config = place_demo(recipe, {**NODE, "CPU": float(cpus)}).config
    assert config.training.global_batch_size == 32
    assert config.training.per_device_train_batch_size * config.scaling.max_workers >= 32
    assert config.training.max_steps == recipe.training.max_steps


def test_workers_and_tasks_are_placed_on_the_node_of_the_driver(recipe: TrainConfig) -> None:
    placement = place_demo(recipe, NODE)
    assert placement.node_resources == {"node:10.0.0.5": 0.001}
    config = placement.config
    assert config.scaling.worker_resources == {"CPU": 1.0, "node:10.0.0.5": 0.001}
    assert not config.scaling.use_gpu


def test_a_node_without_memory_figures_is_judged_by_its_cpus(recipe: TrainConfig) -> None:
    assert place_demo(recipe, {"CPU": 3.0, "node:10.0.0.5": 1.0}).num_workers == 2


def test_nothing_but_the_placement_changes(recipe: TrainConfig) -> None:
    config = place_demo(recipe, NODE).config
    assert config.model_copy(update={"scaling": recipe.scaling, "training": recipe.training}) == recipe


def test_the_first_line_names_the_recipe_and_the_help() -> None:
    assert "whisper_micro.yaml" in NOTICE
    assert "--help" in NOTICE
