"""What the training side uses of other libraries beneath their public interfaces: it fails here when they change."""

import inspect
from pathlib import Path
from typing import Any

from ray._private.state import state
from ray.scripts.scripts import cli
from transformers import Seq2SeqTrainer

from tests.trainers.synthetic import config
from trainers.training.acceleration.step_times import TimedTrainer
from trainers.training.arguments import on_one_device, training_arguments
from trainers.training.strategies.sharded_states import ShardedStates
from trainers.training.trainer import SpeechTrainer

OVERRIDDEN = (
    "_prepare_inputs",
    "_evaluate",
    "_save_checkpoint",
    "_get_num_items_in_batch",
    "_save",
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_save_rng_state",
    "_load_rng_state",
)


def parameters(method: Any) -> list[str]:
    return list(inspect.signature(method).parameters)


def test_the_trainer_has_the_private_methods_that_ours_overrides_and_no_others() -> None:
    ours = {
        name
        for name in {**vars(SpeechTrainer), **vars(TimedTrainer), **vars(ShardedStates)}
        if name.startswith("_") and not name.startswith("__")
    }
    assert {name for name in ours if hasattr(Seq2SeqTrainer, name)} == set(OVERRIDDEN)
    for name in OVERRIDDEN:
        assert parameters(getattr(SpeechTrainer, name)) == parameters(getattr(Seq2SeqTrainer, name)), name


def test_the_trainer_calls_them() -> None:
    source = inspect.getsource(Seq2SeqTrainer.__mro__[1])
    for name in OVERRIDDEN:
        assert f"self.{name}(" in source, name


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
