"""The full weights of a model of which each rank holds a shard: for a score, and for a checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from accelerate import Accelerator
from torch.distributed.fsdp import FSDPModule
from transformers import Trainer, TrainerCallback

# The weights in a checkpoint of a version in which the main process wrote full states.
FULL_STATE = "pytorch_model_fsdp.bin"


@contextmanager
def full_weights(model: Any) -> Iterator[None]:
    """Within it every rank holds all weights, and its forward passes ask nothing of the others. All ranks enter it.

    Ranks have unequal numbers of batches to score, halve those that do not fit their memory, and may give up early;
    with sharded weights each of these would leave the others waiting. So the weights are gathered once for a score.
    The model is what the Trainer trains, wrapped; of FSDP2, it has trained a step already.
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
    """Whether no rank holds all weights of what the Trainer trains: with ZeRO-3 and FSDP2."""
    if isinstance(model, FSDPModule):
        return True
    partitions = getattr(model, "zero_optimization_partition_weights", None)
    return partitions is not None and bool(partitions())


def gathered_weights(accelerator: Accelerator, model: Any) -> dict[str, Any] | None:
    """All weights on the main process, tied ones as one tensor; None: each rank holds them. All ranks call it."""
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
    """DeepSpeed's engine without the hooks that gather and shard again in each layer."""
    # Only where a rank trains with it: importing it takes seconds, and asks for `sharding_process`.
    from deepspeed.runtime.zero import unwrap_model_for_generation  # noqa: PLC0415

    failed: BaseException | None = None
    with unwrap_model_for_generation(engine):
        try:
            yield
        except BaseException as error:
            # It puts its hooks back only where the block ends by itself.
            failed = error
    if failed is not None:
        raise failed


@contextmanager
def _unsharded(root: FSDPModule) -> Iterator[None]:
    """FSDP2's modules, which gather nothing that they hold already."""
    modules = [module for module in root.modules() if isinstance(module, FSDPModule)]  # type: ignore[attr-defined]
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    # The Trainer makes it a forward pass around others, at whose end the root would be sharded again in the middle.
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
    """Has a checkpoint with full states (FULL_STATE) loaded as it was written; others are written in shards."""

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
