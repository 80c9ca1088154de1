"""Gathers the full weights of a sharded model, for scoring and for checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from accelerate import Accelerator
from torch.distributed.fsdp import FSDPModule
from transformers import Trainer, TrainerCallback

# File with the weights in checkpoints of an older version, in which the main process wrote full states.
FULL_STATE = "pytorch_model_fsdp.bin"


@contextmanager
def full_weights(model: Any) -> Iterator[None]:
    """Gives every rank all weights while the block runs, so that forward passes need no other rank. All ranks enter it.

    Ranks score unequal numbers of batches, halve those that do not fit their memory, and may give up early; with
    sharded weights, the others would wait in each of these cases. So the weights are gathered once for a score. `model`
    is the Trainer's wrapped model; with FSDP2, it must have trained a step already.
    """
    if isinstance(model, FSDPModule):
        with _unsharded(model):
            yield
    elif shards_weights(model):
        with _gathered(model):
            yield
    else:
        yield


def shards_weights(model: Any) -> bool:
    """Returns True if no rank holds all weights of the wrapped model: with ZeRO-3 and FSDP2."""
    if isinstance(model, FSDPModule):
        return True
    partitions = getattr(model, "zero_optimization_partition_weights", None)
    return partitions is not None and bool(partitions())


def gathered_weights(accelerator: Accelerator, model: Any) -> dict[str, Any] | None:
    """Returns all weights on the main process, tied ones as one tensor; None if not sharded. All ranks call this."""
    if not shards_weights(model):
        return None
    weights: dict[str, Any] = accelerator.get_state_dict(model)
    if isinstance(model, FSDPModule):
        names: dict[int, str] = {}
        for name, shard in model.named_parameters(remove_duplicate=False):  # type: ignore[attr-defined]
            if name in weights:
                weights[name] = weights[names.setdefault(id(shard), name)]
    return weights


@contextmanager
def _gathered(engine: Any) -> Iterator[None]:
    """Gathers the weights of DeepSpeed's engine, without the hooks that gather and shard again in each layer."""
    # Imported only if a rank trains with DeepSpeed: it takes seconds, and requires `sharding_process`.
    from deepspeed.runtime.zero import unwrap_model_for_generation  # noqa: PLC0415

    failed: BaseException | None = None
    with unwrap_model_for_generation(engine):
        try:
            yield
        except BaseException as error:
            # DeepSpeed restores its hooks only if the block ends without an error.
            failed = error
    if failed is not None:
        raise failed


@contextmanager
def _unsharded(root: FSDPModule) -> Iterator[None]:
    """Gathers the weights of FSDP2's modules, which then need no collectives."""
    modules = [module for module in root.modules() if isinstance(module, FSDPModule)]  # type: ignore[attr-defined]
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    # The Trainer registers `generate` as a forward method around others, at whose end the root would be sharded again.
    as_forward = vars(root).pop("generate", None)
    try:
        yield
    finally:
        if as_forward is not None:
            vars(root)["generate"] = as_forward
        for module in modules:
            module.reshard()
            module.set_reshard_after_forward(True, recurse=False)


class LoadFullStates(TrainerCallback):
    """Loads a checkpoint with full states (FULL_STATE) as it was written; other checkpoints are sharded."""

    def __init__(self, trainer: Trainer):
        self._state = trainer.accelerator.state
        self._sharded = self._state.fsdp_plugin
        full = copy(self._sharded)
        # Set by the next line to the values for full states.
        full.state_dict_config = full.optim_state_dict_config = None
        full.set_state_dict_type("FULL_STATE_DICT")
        self._state.fsdp_plugin = full

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Runs after the Trainer has loaded model and optimizer."""
        self._state.fsdp_plugin = self._sharded
