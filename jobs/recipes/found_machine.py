"""Detects GPUs, CPUs and memory of this machine, without importing torch."""

import math
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from trainers.config.wording import counted
from trainers.distributed.hardware import CUDA, ROCM, SMI_TIMEOUT_S, devices_here

QUERY = ["--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
# First compute capability with bfloat16.
BFLOAT16 = 8.0
# Memory of a GPU whose driver does not report it.
UNKNOWN_MEMORY_BYTES = 8 * 2**30
# GPUs with less are integrated graphics, which share the machine's memory.
LEAST_MEMORY_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Gpu:
    """A GPU that a worker may use."""

    name: str
    memory_bytes: int
    has_bfloat16: bool


@dataclass(frozen=True)
class Machine:
    """Resources for training on this machine."""

    cpus: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()

    def __str__(self) -> str:
        names = dict.fromkeys(f"{gpu.name} ({gpu.memory_bytes / 2**30:.0f} GiB)" for gpu in self.gpus)
        gpus = f"{len(self.gpus)} × {', '.join(names)}" if names else "no GPU"
        return f"{counted(self.cpus, 'CPU')}, {self.memory_bytes / 2**30:.0f} GiB of memory, {gpus}"


def look_at_machine(root: Path = Path("/")) -> Machine:
    """Returns the CPUs and memory that this process may use, within a container's limits, and the GPUs."""
    kinds = devices_here(root)
    gpus = _nvidia_gpus() if CUDA in kinds else _amd_gpus(root) if ROCM in kinds else ()
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota_us, period_us = _limits(root / "sys/fs/cgroup/cpu.max", 2)
    memory_bytes, *_ = _limits(root / "sys/fs/cgroup/memory.max", 1)
    allowed = math.ceil(quota_us / period_us) if math.isfinite(quota_us) else cpus
    return Machine(min(cpus, allowed), int(min(psutil.virtual_memory().total, memory_bytes)), gpus)


def _limits(file: Path, count: int) -> list[float]:
    """Returns the numbers of a control group's limit; infinity without a limit."""
    try:
        words = file.read_text(encoding="ascii").split()
    except OSError:
        words = []
    return [float(word) if word.isdecimal() else math.inf for word in [*words, *["max"] * count][:count]]


def _nvidia_gpus() -> tuple[Gpu, ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        result = subprocess.run([tool, *QUERY], capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    gpus = tuple(_nvidia_gpu(line) for line in result.stdout.splitlines() if line.count(",") >= 2)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return gpus if visible is None else gpus[: sum(each.strip() not in ("", "-1") for each in visible.split(","))]


def _nvidia_gpu(line: str) -> Gpu:
    name, memory, capability = (part.strip() for part in line.rsplit(",", 2))
    memory_bytes = int(memory) * 2**20 if memory.isdecimal() else UNKNOWN_MEMORY_BYTES
    return Gpu(name, memory_bytes, has_bfloat16=capability[:1].isdigit() and float(capability) >= BFLOAT16)


def _amd_gpus(root: Path) -> tuple[Gpu, ...]:
    files = sorted(root.glob("sys/class/drm/card*/device/mem_info_vram_total"))
    sizes = [int(file.read_text(encoding="ascii")) for file in files]
    return tuple(Gpu("AMD GPU", size, has_bfloat16=True) for size in sizes if size >= LEAST_MEMORY_BYTES)
