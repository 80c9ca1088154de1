"""torch.compile of a model's layers, for one shape at a time; a model that cannot be compiled trains uncompiled.

Each layer is compiled separately: all have the same code, gradients of a layer are reduced while those before it are
computed, and what changes with a bucket outside of layers does not cause recompilation. Layers are compiled in place,
so that names of weights stay unchanged.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo

from trainers.config.schema import TrainConfig
from trainers.distributed.session import Session
from trainers.models.adaptation.trained_weights import stacks
from trainers.training.trainer.speech_trainer import SpeechTrainer

# Label lengths are padded to a multiple of this many tokens.
LABEL_MULTIPLE = 32
# Maximum number of shapes per layer: a decoder's are pairs of a bucket and a label length. Other shapes run uncompiled.
MOST_SHAPES = 64
BACKEND = "inductor"


def compile_model(
    trainer: SpeechTrainer, config: TrainConfig, session: Session, *, backend: str | Callable[..., Any] = BACKEND
) -> None:
    """Compiles the model on every rank, or on none, and prints which. Every rank calls this before training."""
    model: Any = trainer.model
    problem = obstacle(config)
    if problem is None:
        layers = compile_layers(model, backend)
        trainer.pad_labels(LABEL_MULTIPLE)
        try:
            with _same_buffers(model):
                trainer.try_step()
        except Exception as error:  # the run continues after any error of a compiler
            # The original error inside of torch's compiler.
            cause = getattr(error, "inner_exception", error)
            problem = f"{type(cause).__name__}: {(str(cause).strip() or 'no reason given').splitlines()[0]}"
        torch._dynamo.config.suppress_errors = True
    found = next((each for each in session.gather(problem, "compiling the model") if each is not None), None)
    if found is None:
        trainer.compiled = True
        session.show_from_main(f"train: {len(layers)} layers are compiled")
        return
    for module in model.modules():
        module._compiled_call_impl = None
    trainer.pad_labels(1)
    session.show_from_main(f"warning: training.torch_compile: training continues without compilation: {found}")


def obstacle(config: TrainConfig) -> str | None:
    """Returns why a recipe's model cannot be compiled; what this machine lacks for it is found in the first step."""
    if config.strategy.is_sharded:
        return f"strategy.name {config.strategy.name} gathers weights in hooks, which no layer is compiled with"
    if config.training.checkpoints_reentrantly:
        return "gradient_checkpointing_kwargs.use_reentrant runs layers in a way that is not compiled: remove it"
    return None


def compile_layers(model: torch.nn.Module, backend: str | Callable[..., Any] = BACKEND) -> list[torch.nn.Module]:
    """Marks each layer for compilation in place when it first runs; returns the layers."""
    torch._dynamo.config.recompile_limit = MOST_SHAPES
    torch._dynamo.config.suppress_errors = False
    layers = [layer for _, stack in stacks(model) for layer in stack]
    for layer in layers:
        layer.compile(dynamic=False, backend=backend)
    return layers


@contextmanager
def _same_buffers(model: torch.nn.Module) -> Iterator[None]:
    """Restores buffers after the block: statistics of a batch norm, which only steps of the plan may change."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
