"""FSDP2's part of a checkpoint: a shard of every rank, or, of an early version, states that the main process wrote."""

from copy import copy
from typing import Any

from transformers import Trainer, TrainerCallback

# The weights in a checkpoint of a version in which the main process wrote full states.
FULL_STATE = "pytorch_model_fsdp.bin"


class LoadFullStates(TrainerCallback):
    """Has the states of such a checkpoint loaded as they were written; others are written as ever."""

    def __init__(self, trainer: Trainer):
        self._state = trainer.accelerator.state
        self._sharded = self._state.fsdp_plugin
        full = copy(self._sharded)
        # Filled by the next line as full states need it.
        full.state_dict_config = full.optim_state_dict_config = None
        full.set_state_dict_type("FULL_STATE_DICT")
        self._state.fsdp_plugin = full

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called after the Trainer has loaded model and optimizer."""
        self._state.fsdp_plugin = self._sharded
