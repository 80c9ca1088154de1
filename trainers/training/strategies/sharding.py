"""What sharding asks of a rank's process, and DeepSpeed before it is imported.

New and loaded weights alike are made in full on every rank, as for DDP, and sharded when training begins; so the same
seed gives the same weights, and a model must fit a rank's memory once. transformers itself is not told of ZeRO-3
(`unset_hf_deepspeed_config`): it would load every model sharded, and generate in lockstep on all ranks. Its models
would also run the layers that they skip at random, for which `run_every_layer` cares.
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

from trainers.config.parts.strategy.strategy_part import StrategyPart
from trainers.storage.own_folder import own_temporary_folder

FOLDER_VARIABLE = "TORCH_EXTENSIONS_DIR"
ACCELERATE_NOTES = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")


class CompileLock:
    """Takes the place of `torch.utils.file_baton.FileBaton`: whoever gets it compiles, or finds everything compiled.

    torch's own is a file that exists, for which each later process waits, however its holder ended.
    """

    def __init__(self, path: str):
        self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR)

    def try_acquire(self) -> bool:
        """Waits for the lock, so that nobody takes what a killed process was compiling for complete."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        os.close(self._descriptor)


@contextmanager
def operators_compiled_here() -> Iterator[None]:
    """Within it, this process compiles and finds DeepSpeed's operators in a folder of its own node and versions.

    It is in TORCH_EXTENSIONS_DIR where that is set, else in a temporary folder: home folders, where torch puts what it
    compiles, are shared by nodes of different CPUs.
    """
    # It looks for compilers, which only DeepSpeed needs.
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


def run_every_layer(network: nn.Module) -> tuple[str, ...]:
    """Stops a network from skipping layers at random while it trains (LayerDrop, https://arxiv.org/abs/1909.11556).

    Whisper's and Speech2Text's encoders and decoders keep the probability as an attribute, wav2vec2's in their config;
    ranks draw by seeds of their own.

    Returns:
        What was changed, for the log.
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
