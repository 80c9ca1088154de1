"""The table of accelerators, and which of them a recipe means."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trainers.config.parts.scaling_part import ScalingPart
from trainers.scripts.accelerators.accelerator import Accelerator
from trainers.scripts.accelerators.cpu import CPU
from trainers.scripts.accelerators.cuda import CUDA
from trainers.scripts.accelerators.hpu import HPU
from trainers.scripts.accelerators.rocm import ROCM

ACCELERATORS: Mapping[str, Accelerator] = {each.name: each for each in (CPU, CUDA, ROCM, HPU)}


def accelerator_of(scaling: ScalingPart, root: Path = Path("/")) -> Accelerator:
    """What the workers have.

    `auto` is the maker of this machine's GPUs, by its devices below `root`. Ray is asked for the same whatever they
    are; what a program's environment is, its own node has to say.
    """
    if scaling.device == "auto":
        is_amd = (root / "dev/kfd").exists() and not list((root / "dev").glob("nvidia[0-9]*"))
        return replace(ROCM if is_amd else CUDA, name="auto")
    return ACCELERATORS[scaling.device]
