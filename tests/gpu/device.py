"""Where the suite runs: on the GPUs of this machine, or as a rehearsal on its CPUs, with sizes of next to nothing."""

import os

import torch

VARIABLE = "RAYSCRIBE_GPU_TESTS_ON"
NAME = os.environ.get(VARIABLE) or "cuda"
ON_GPU = NAME == "cuda"
# Processes of a strategy: one a GPU.
GPUS = torch.cuda.device_count() if ON_GPU else 0
GIB = 2**30


def missing() -> str | None:
    """Why nothing of the suite can run; None where it can."""
    if NAME not in ("cuda", "cpu"):
        return f"{VARIABLE} is {NAME}: set it to cuda or cpu"
    return "no CUDA device" if ON_GPU and not torch.cuda.is_available() else None


def memory_bytes() -> int:
    """Of this machine's first GPU; 0 without."""
    return int(torch.cuda.get_device_properties(0).total_memory) if GPUS else 0
