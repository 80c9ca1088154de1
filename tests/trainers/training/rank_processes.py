"""Ranks in processes of their own, forked from a server that has imported what each of them would."""

import multiprocessing
from collections.abc import Callable
from typing import Any

from torch.multiprocessing.spawn import start_processes

# Of all tests that start ranks: the first that does starts the server. Accelerate imports deepspeed where it is there.
PRELOADED = [
    "deepspeed",
    "tests.contract.family_runs",
    "tests.trainers.training.fsdp_process",
    "tests.trainers.training.trainer.accumulation_process",
    "transformers.models.wav2vec2.modeling_wav2vec2",
    "transformers.models.whisper.modeling_whisper",
]


def run_ranks(function: Callable[..., None], count: int, *arguments: Any) -> None:
    """Calls a function of a module with each rank and the arguments, and waits for all.

    Raises:
        ProcessException: one of them failed.
    """
    multiprocessing.set_forkserver_preload(PRELOADED)
    start_processes(function, args=arguments, nprocs=count, start_method="forkserver")
