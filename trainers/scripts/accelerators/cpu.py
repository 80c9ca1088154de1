"""No accelerator."""

from trainers.scripts.accelerators.accelerator import Accelerator

# Ray leaves GPUs visible to workers that hold none. HIP takes an empty list for none given, and -1 for no device.
CPU = Accelerator("cpu", None, "gloo", hidden={"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"})
