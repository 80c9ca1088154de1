"""What the training side uses of other libraries beneath their public interfaces: it fails here when they change."""

import inspect
from typing import Any

from ray._private.state import state
from transformers import Seq2SeqTrainer

from trainers.training.trainer import SpeechTrainer

OVERRIDDEN = ("_prepare_inputs", "_save", "_save_rng_state", "_load_rng_state")


def parameters(method: Any) -> list[str]:
    return list(inspect.signature(method).parameters)


def test_the_trainer_has_the_private_methods_that_ours_overrides_and_no_others() -> None:
    ours = {name for name in vars(SpeechTrainer) if name.startswith("_") and not name.startswith("__")}
    assert {name for name in ours if hasattr(Seq2SeqTrainer, name)} == set(OVERRIDDEN)
    for name in OVERRIDDEN:
        assert parameters(getattr(SpeechTrainer, name)) == parameters(getattr(Seq2SeqTrainer, name)), name


def test_the_trainer_calls_them() -> None:
    source = inspect.getsource(Seq2SeqTrainer.__mro__[1])
    for name in OVERRIDDEN:
        assert f"self.{name}(" in source, name


def test_ray_s_global_state_knows_how_far_the_cluster_may_grow() -> None:
    assert parameters(state.get_max_resources_from_cluster_config) == []
