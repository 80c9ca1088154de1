"""What sharding asks of a rank's process, and DeepSpeed before it is imported.

New and loaded weights alike are made in full on every rank, as for DDP, and sharded when training begins; so the same
seed gives the same weights, and a model must fit a rank's memory once. transformers itself is not told of ZeRO-3
(`unset_hf_deepspeed_config`): it would load every model sharded, and generate in lockstep on all ranks. Its models
would also run the layers that they skip at random, for which `every_layer` cares.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch.distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]
from transformers import TrainingArguments

from trainers.config.parts.strategy_part import StrategyPart
from trainers.training.strategies.compiled_operators import operators_compiled_here

ACCELERATE_NOTES = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")


@contextmanager
def sharding_process(part: StrategyPart, *, on_gpu: bool) -> Iterator[None]:
    """Within it DeepSpeed, not imported before, and FSDP2 find what they ask of a process. Every rank enters it."""
    if not part.is_sharded:
        yield
        return
    if part.name == "deepspeed":
        if not on_gpu:
            # It would take a GPU that this machine has.
            os.environ["DS_ACCELERATOR"] = "cpu"
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    try:
        with _process_group(on_gpu=on_gpu), operators_compiled_here() if part.name == "deepspeed" else nullcontext():
            yield
    finally:
        # Where accelerate leaves a note for the processes that it starts, a later run of this one would shard, too.
        for name in ACCELERATE_NOTES:
            os.environ.pop(name, None)


@contextmanager
def _process_group(*, on_gpu: bool) -> Iterator[None]:
    """The ranks' group, or one of a process that is alone: they ask for it all the same, and DeepSpeed for MPI."""
    if torch.distributed.is_initialized():
        yield
        return
    store = HashStore()
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", store=store, rank=0, world_size=1)
    os.environ["LOCAL_RANK"] = "0"
    try:
        yield
    finally:
        del os.environ["LOCAL_RANK"]
        torch.distributed.destroy_process_group()


def nvme_optimizer(
    part: StrategyPart, arguments: TrainingArguments
) -> tuple[type[torch.optim.Optimizer], dict[str, Any]] | None:
    """DeepSpeed's AdamW, whose state can be swapped to NVMe, and its settings; None: the Trainer's own optimizer.

    With its state on the CPU the Trainer's own stays, so that the weights come out as without offloading; DeepSpeed's
    adds epsilon at another place of the formula.
    """
    if part.offload_optimizer != "nvme":
        return None
    # Not before `sharding_process`.
    from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: PLC0415

    betas = (arguments.adam_beta1, arguments.adam_beta2)
    return DeepSpeedCPUAdam, {"lr": arguments.learning_rate, "betas": betas, "eps": arguments.adam_epsilon}
