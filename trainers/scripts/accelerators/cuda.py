"""GPUs of NVIDIA."""

from trainers.scripts.accelerators.accelerator import Accelerator

CUDA = Accelerator("cuda", "GPU", "nccl", ("CUDA_VISIBLE_DEVICES",))
