"""Prepares a rank's process for sharding by ZeRO or FSDP2, and gathers full weights for scores and checkpoints.

Weights are created in full on every rank, as for DDP, and sharded when training begins. So the same seed gives the same
weights, and a model must fit into a rank's memory once. ZeRO-3 is disabled in transformers itself
(`unset_hf_deepspeed_config`), which would otherwise load every model sharded, and generate in lockstep on all ranks.
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
from accelerate import Accelerator
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.fsdp import FSDPModule
from transformers import TrainingArguments

from trainers.config.parts.strategy_part import StrategyPart
from trainers.storage.own_folder import own_temporary_folder

FOLDER_VARIABLE = "TORCH_EXTENSIONS_DIR"
ACCELERATE_NOTES = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")


class CompileLock:
    """Replaces `torch.utils.file_baton.FileBaton`, torch's lock of a compilation.

    torch's lock is a file whose existence blocks all later processes, even if its holder was killed.
    """

    def __init__(self, path: str):
        self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR)

    def try_acquire(self) -> bool:
        """Waits for the lock; its holder compiles, or finds everything compiled, even after a process was killed."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        os.close(self._descriptor)


@contextmanager
def operators_compiled_here() -> Iterator[None]:
    """Makes DeepSpeed compile and load its operators in a folder of this node and these versions while the block runs.

    It is in TORCH_EXTENSIONS_DIR, else in a temporary folder, since nodes may share home folders, torch's default.
    """
    # Imported here, since it looks for compilers at import, which only DeepSpeed needs.
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
    """Prepares the process for FSDP2 or DeepSpeed, which must not be imported before. Every rank enters the block."""
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
        # accelerate sets variables for the processes that it starts, which would also make a later run of this process
        # shard.
        for name in ACCELERATE_NOTES:
            os.environ.pop(name, None)


@contextmanager
def _process_group(*, on_gpu: bool) -> Iterator[None]:
    """Makes a process group of one process while the block runs, if there is none, since the libraries require one."""
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
    """Returns DeepSpeed's AdamW, whose state can be swapped to NVMe, with settings; None for the Trainer's optimizer.

    If the state is offloaded to the CPU, the Trainer's optimizer is used, so that weights are equal to those without
    offloading; DeepSpeed's optimizer adds epsilon at another place of the formula.
    """
    if part.offload_optimizer != "nvme":
        return None
    # Must not be imported before `sharding_process`.
    from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: PLC0415

    betas = (arguments.adam_beta1, arguments.adam_beta2)
    return DeepSpeedCPUAdam, {"lr": arguments.learning_rate, "betas": betas, "eps": arguments.adam_epsilon}


def run_every_layer(network: nn.Module) -> tuple[str, ...]:
    """Stops a network from skipping layers at random (LayerDrop), since ranks draw with different seeds.

    Encoders and decoders of Whisper and Speech2Text have the probability as an attribute, wav2vec2 models in their
    config. Returns descriptions of changes, for the log.
    """
    highest = 0.0
    holders: Any = [holder for module in network.modules() for holder in (module, getattr(module, "config", None))]
    for holder in holders:
        probability = getattr(holder, "layerdrop", None)
        if isinstance(probability, float) and probability > 0:
            highest = max(highest, probability)
            holder.layerdrop = 0.0
    if not highest:
        return ()
    return (f"no layer is skipped at random (layerdrop was {highest:g}): ranks that shard weights run the same layers",)


@contextmanager
def full_weights(model: Any) -> Iterator[None]:
    """Gives every rank all weights while the block runs, so that forward passes need no other rank. All ranks enter it.

    Ranks score unequal numbers of batches, halve batches that do not fit into memory, and may end early. With sharded
    weights, other ranks would wait in each of these cases, so weights are gathered once for a score. `model` is the
    Trainer's wrapped model; with FSDP2, it must already have trained a step.
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
    """Returns True if no rank holds all weights of the wrapped model, as with ZeRO-3 and FSDP2."""
    if isinstance(model, FSDPModule):
        return True
    partitions = getattr(model, "zero_optimization_partition_weights", None)
    return partitions is not None and bool(partitions())


def gathered_weights(accelerator: Accelerator, model: Any) -> dict[str, Any] | None:
    """Returns all weights on the main process, tied weights as one tensor; None if not sharded. All ranks call this."""
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
    # Imported only if a rank trains with DeepSpeed, since it takes seconds and requires `sharding_process`.
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
    # The Trainer registers `generate` as a forward method, at the end of which the root would be sharded again.
    as_forward = vars(root).pop("generate", None)
    try:
        yield
    finally:
        if as_forward is not None:
            vars(root)["generate"] = as_forward
        for module in modules:
            module.reshard()
            module.set_reshard_after_forward(True, recurse=False)
