"""FSDP2's part of a checkpoint: a shard of every rank, and beside them the model as a whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

from torch import nn
from transformers import Seq2SeqTrainer

# The weights in a checkpoint of a version in which the main process wrote whole states.
WHOLE_STATE = "pytorch_model_fsdp.bin"


class ShardedStates(Seq2SeqTrainer):
    """A Trainer whose checkpoints have an ordinary model beside FSDP2's shards; other strategies are as they were."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes an ordinary model, gathered by the main process; with shards, the Trainer would write none."""
        if self.is_fsdp_enabled:
            self._save(output_dir, self._gathered())
        else:
            super().save_model(output_dir, _internal_call)

    def _gathered(self) -> dict[str, Any]:
        """All weights on the main process, where tied ones are one tensor again, and none on the others."""
        assert self.model is not None
        weights: dict[str, Any] = self.accelerator.get_state_dict(self.model)
        names: dict[int, str] = {}
        for name, shard in self.model.named_parameters(remove_duplicate=False):
            if name in weights:
                weights[name] = weights[names.setdefault(id(shard), name)]
        return weights

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        with self._as_stored(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with self._as_stored(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    @contextmanager
    def _as_stored(self, checkpoint: str | None) -> Iterator[None]:
        """Within it, states are loaded whole from a checkpoint that has them so."""
        if checkpoint is None or not (Path(checkpoint) / WHOLE_STATE).is_file():
            yield
            return
        state = self.accelerator.state
        sharded, whole = state.fsdp_plugin, copy(state.fsdp_plugin)
        # Filled by the next line as whole states need it.
        whole.state_dict_config = whole.optim_state_dict_config = None
        whole.set_state_dict_type("FULL_STATE_DICT")
        state.fsdp_plugin = whole
        try:
            yield
        finally:
            state.fsdp_plugin = sharded
