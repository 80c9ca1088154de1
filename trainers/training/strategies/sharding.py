"""Prepares a rank's process for sharding, and DeepSpeed before it is imported.

New and loaded weights are created in full on every rank, as for DDP, and sharded when training begins; so the same seed
gives the same weights, and a model must fit into a rank's memory once. ZeRO-3 is disabled in transformers itself
(`unset_hf_deepspeed_config`): it would load every model sharded, and generate in lockstep on all ranks. Its models
would also run the layers that they skip at random, which `run_every_layer` does instead.
"""

import fcntl
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from transformers import TrainingArguments

from trainers.config.parts.strategy_part import StrategyPart
from trainers.storage.own_folder import own_temporary_folder

FOLDER_VARIABLE = "TORCH_EXTENSIONS_DIR"
ACCELERATE_NOTES = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")


class CompileLock:
    """Replaces `torch.utils.file_baton.FileBaton`: whoever gets the lock compiles, or finds everything compiled.

    torch's own lock is a file whose existence blocks all later processes, even if its holder was killed.
    """

    def __init__(self, path: str):
        self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR)

    def try_acquire(self) -> bool:
        """Waits for the lock, so that nobody considers the incomplete output of a killed process complete."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        os.close(self._descriptor)


@contextmanager
def operators_compiled_here() -> Iterator[None]:
    """Makes DeepSpeed compile and load its operators in a folder of this node and these versions while the block runs.

    The folder is in TORCH_EXTENSIONS_DIR if set, else in a temporary folder: home folders, torch's default for compiled
    code, are shared by nodes with different CPUs.
    """
    # Looks for compilers at import, which only DeepSpeed needs.
    from torch.utils import cpp_extension  # noqa: PLC0415

    compiler: Any = cpp_extension
    before, torchs_own = os.environ.get(FOLDER_VARIABLE), compiler.FileBaton
    root = Path(before) if before else own_temporary_folder("operators")
    os.environ[FOLDER_VARIABLE] = str(root / f"python-{platform.python_version()}-torch-{torch.__version__}")
    compiler.FileBaton = CompileLock
    try:
        yield
    finally:
        compiler.FileBaton = torchs_own
        os.environ.pop(FOLDER_VARIABLE)
        if before is not None:
            os.environ[FOLDER_VARIABLE] = before


@contextmanager
def sharding_process(part: StrategyPart, *, on_gpu: bool) -> Iterator[None]:
    """Prepares the process for FSDP2 and DeepSpeed, not imported before, while the block runs. Every rank enters it."""
    if not part.is_sharded:
        yield
        return
    if part.name == "deepspeed":
        if not on_gpu:
            # Otherwise DeepSpeed would use a GPU of this machine.
            os.environ["DS_ACCELERATOR"] = "cpu"
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    try:
        with _process_group(on_gpu=on_gpu), operators_compiled_here() if part.name == "deepspeed" else nullcontext():
            yield
    finally:
        # accelerate leaves notes for the processes that it starts, which would make a later run of this process shard,
        # too.
        for name in ACCELERATE_NOTES:
            os.environ.pop(name, None)


@contextmanager
def _process_group(*, on_gpu: bool) -> Iterator[None]:
    """Yields in the ranks' process group, or in a new one of a single process, which the libraries require, too."""
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
    """Returns DeepSpeed's AdamW, whose state can be swapped to NVMe, with settings; None: the Trainer's own optimizer.

    With its state on the CPU the Trainer's own is used, so that the weights are equal to those without offloading;
    DeepSpeed's adds epsilon at another place of the formula.
    """
    if part.offload_optimizer != "nvme":
        return None
    # Must not be imported before `sharding_process`.
    from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: PLC0415

    betas = (arguments.adam_beta1, arguments.adam_beta2)
    return DeepSpeedCPUAdam, {"lr": arguments.learning_rate, "betas": betas, "eps": arguments.adam_epsilon}


def run_every_layer(network: nn.Module) -> tuple[str, ...]:
    """Stops a network from skipping layers at random during training (LayerDrop, https://arxiv.org/abs/1909.11556).

    Whisper's and Speech2Text's encoders and decoders store the probability as an attribute, wav2vec2's in their config;
    ranks draw with different seeds.

    Returns:
        Descriptions of the changes, for the log.
    """
    highest = 0.0
    for module in network.modules():
        holders: tuple[Any, ...] = (module, getattr(module, "config", None))
        for holder in holders:
            probability = getattr(holder, "layerdrop", None)
            if isinstance(probability, float) and probability > 0:
                highest = max(highest, probability)
                holder.layerdrop = 0.0
    if not highest:
        return ()
    return (f"no layer is skipped at random (layerdrop was {highest:g}): ranks that shard weights run the same layers",)
