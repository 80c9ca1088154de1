"""Compiles a model's layers by torch.compile, for one shape at a time; trains uncompiled if that fails.

Each layer is compiled separately, since all layers have the same code, gradients of a layer are reduced while those of
earlier layers are computed, and code outside of layers that depends on the bucket causes no recompilation. Layers are
compiled in place, so that names of weights stay unchanged.
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
# Maximum number of shapes per layer; a decoder's shapes are pairs of bucket and label length. Others run uncompiled.
MOST_SHAPES = 64
BACKEND = "inductor"


def compile_model(
    trainer: SpeechTrainer, config: TrainConfig, session: Session, *, backend: str | Callable[..., Any] = BACKEND
) -> None:
    """Compiles the model on every rank or, after an error, on none; prints the result. Every rank calls this."""
    model: Any = trainer.model
    problem = obstacle(config)
    if problem is None:
        layers = compile_layers(model, backend)
        trainer.pad_labels(LABEL_MULTIPLE)
        try:
            with _same_buffers(model):
                trainer.try_step()
        except Exception as error:  # the run continues after any error of a compiler
            # torch's compiler wraps the original error.
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
    """Returns why a recipe's model cannot be compiled, as far as the recipe alone shows; None if it can."""
    if config.strategy.is_sharded:
        return f"strategy.name {config.strategy.name} gathers weights in hooks, with which layers cannot be compiled"
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
    """Restores buffers after the block, such as a batch norm's statistics, which only planned steps may change."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
