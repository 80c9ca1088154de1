"""GPUs of AMD, which torch and programs call CUDA's."""

from trainers.scripts.accelerators.accelerator import Accelerator

# HIP reads the first, and only without it the second, which many programs look into. ROCR_VISIBLE_DEVICES, which would
# renumber the devices of both, is left to the node: Ray's ids count within it.
ROCM = Accelerator("rocm", "GPU", "nccl", ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
