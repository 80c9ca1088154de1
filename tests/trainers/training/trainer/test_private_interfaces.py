"""What the training side uses of other libraries beneath their public interfaces: it fails here when they change."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from ray._private.state import state
from ray.data._internal.execution.resource_manager import ResourceManager
from ray.scripts.scripts import cli
from transformers import Seq2SeqTrainer, Trainer

from tests.trainers.synthetic import config
from trainers.training.arguments import on_one_device, training_arguments
from trainers.training.trainer.speech_trainer import SpeechTrainer

# Private methods of the Trainer that ours overrides, the reason, and what calls them how often.
PRIVATE = {
    "_load_from_checkpoint": (
        "an adapter's checkpoint is none that the Trainer opens: its network is no PeftModel",
        {"train": 1, "_prepare_for_training": 1},
    ),
    "_save_rng_state": (
        "a file of every rank, on every node, that nothing reads: each step is seeded from its number",
        {"_save_checkpoint": 1},
    ),
}
# Public ones, which a subclass is to override, and what calls them.
PUBLIC = {
    "create_scheduler": "_prepare_for_training",
    "get_train_dataloader": "_inner_training_loop",
    "get_batch_samples": "_run_epoch",
    "training_step": "_run_epoch",
    "compute_loss": "training_step",
    "log": "_maybe_log_save_evaluate",
    "evaluate": "_evaluate",
    "save_model": "_save_checkpoint",
}


def parameters(method: Any) -> list[str]:
    return list(inspect.signature(method).parameters)


def calls(caller: str, method: str) -> int:
    return inspect.getsource(getattr(Trainer, caller)).count(f"self.{method}(")


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.integration
def test_the_trainer_still_calls_a_private_method_that_ours_overrides(name: str) -> None:
    _, callers = PRIVATE[name]
    assert parameters(getattr(SpeechTrainer, name)) == parameters(getattr(Trainer, name))
    assert {caller: calls(caller, name) for caller in callers} == callers
    assert inspect.getsource(Trainer).count(f"self.{name}(") == sum(callers.values()), "and nothing else does"


@pytest.mark.parametrize("name", PUBLIC)
def test_the_trainer_still_calls_a_public_method_that_ours_overrides(name: str) -> None:
    assert calls(PUBLIC[name], name) == 1


def test_ours_overrides_no_others() -> None:
    overridden = {name for name in vars(SpeechTrainer) if hasattr(Seq2SeqTrainer, name) and not name.startswith("__")}
    # `train` is what ours is called by.
    assert overridden == {*PRIVATE, *PUBLIC, "train"}
    assert SpeechTrainer.__bases__ == (Seq2SeqTrainer,)


def test_a_process_that_sees_several_gpus_trains_on_one(tmp_path: Path) -> None:
    arguments = training_arguments(config(), output_dir=tmp_path, accumulation=1, on_gpu=False)
    # What transformers finds in a process that torchrun has not started.
    arguments._n_gpu = 3
    assert arguments.n_gpu == 3
    assert on_one_device(arguments).n_gpu == 1


def test_ray_s_global_state_knows_which_nodes_are_taken_away() -> None:
    assert parameters(state.get_draining_nodes) == []


def test_ray_s_command_drains_a_node() -> None:
    options = {name for parameter in cli.commands["drain-node"].params for name in parameter.opts}
    assert {"--address", "--node-id", "--reason", "--reason-message", "--deadline-remaining-seconds"} <= options


def test_ray_s_global_state_knows_how_far_the_cluster_may_grow() -> None:
    assert parameters(state.get_max_resources_from_cluster_config) == []


def test_ray_data_asks_for_its_resources_anew_after_an_interval_of_its_class() -> None:
    assert "self.GLOBAL_LIMITS_UPDATE_INTERVAL_S" in inspect.getsource(ResourceManager.get_global_limits)
