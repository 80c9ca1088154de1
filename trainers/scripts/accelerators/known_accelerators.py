"""The table of accelerators, and which of them a recipe means."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trainers.config.parts.scaling_part import ScalingPart
from trainers.scripts.accelerators.accelerator import Accelerator

# Ray leaves GPUs visible to workers that hold none. HIP takes an empty list for none given, and -1 for no device.
CPU = Accelerator("cpu", None, "gloo", hidden={"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"})
CUDA = Accelerator("cuda", "GPU", "nccl", ("CUDA_VISIBLE_DEVICES",))
# HIP reads the first, and only without it the second, which many programs look into. ROCR_VISIBLE_DEVICES, which would
# renumber the devices of both, is left to the node: Ray's ids count within it.
ROCM = Accelerator("rocm", "GPU", "nccl", ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
# Of Gaudis. https://docs.habana.ai/en/latest/PyTorch/Runtime_Flags.html; collectives within graphs are of lazy mode.
HPU_MODES = {
    None: {},
    "lazy": {"PT_HPU_LAZY_MODE": "1", "PT_HPU_ENABLE_LAZY_COLLECTIVES": "true"},
    "eager": {"PT_HPU_LAZY_MODE": "0"},
}
# HABANA_VISIBLE_DEVICES is read by the container's runtime, this one by the program.
HPU = Accelerator("hpu", "HPU", "hccl", ("HABANA_VISIBLE_MODULES",), modes=HPU_MODES)
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
