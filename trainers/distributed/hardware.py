"""Detects the accelerators of this machine, and whether a build of torch fits them. Does not import torch."""

import contextlib
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainers.config.parts.scaling_part import WITHOUT_GPU, AcceleratorName
from trainers.findings import Finding, ok, problem, warning

CUDA, ROCM, HPU, CPU = "CUDA", "ROCm", "HPU", "CPU"
# Kinds of hardware that satisfy each value of scaling.accelerator.
KINDS: Mapping[AcceleratorName, tuple[str, ...]] = {
    "auto": (CUDA, ROCM),
    "cuda": (CUDA,),
    "rocm": (ROCM,),
    "hpu": (HPU,),
    "cpu": (),
}
# PCI vendor id of Habana Labs; /dev/accel contains other vendors' accelerators too.
HABANA_VENDOR = "0x1da3"
SMI_TIMEOUT_S = 20.0
# Packages that are built for the same hardware as torch, and are installed with it.
BUILT_WITH_TORCH = ("torch", "torchaudio", "torchvision")
# The newest ROCm for which torch was released, by torch's minor version up to 2.10 (https://pytorch.org/get-started/
# previous-versions); later versions use the ROCm of cluster_configs/Dockerfile. PyPI has the builds for CUDA.
ROCM_OF = {4: "6.1", 5: "6.2", 6: "6.2.4", 7: "6.3", 8: "6.4", 9: "6.4", 10: "7.1"}
NEWEST_ROCM = "7.2"
GAUDI_FIX = (
    "torch for Gaudi comes only in its vendor's image: start Ray in it, and set script.python to its interpreter "
    "(docs/accelerators.md)"
)
DRIVERS = {
    CUDA: "update NVIDIA's driver (nvidia-smi shows what it supports), or check CUDA_VISIBLE_DEVICES",
    ROCM: "let the user open /dev/kfd: sudo usermod -aG render,video $USER, in a container --device=/dev/kfd "
    "--device=/dev/dri --group-add=video; update AMD's driver (rocm-smi shows it), or check HIP_VISIBLE_DEVICES",
    HPU: "start the container with --runtime=habana -e HABANA_VISIBLE_DEVICES=all (hl-smi shows the devices), or check "
    "HABANA_VISIBLE_MODULES",
}


@dataclass(frozen=True)
class Build:
    """An installed build of torch.

    Attributes:
        name: Its version and kind, for messages.
        sees_devices: True if torch sees a usable device of its kind; False also if not checked.
        error: Message of torch if it sees no device.
        packages: Requirements for pip: torch and the packages built with it.
    """

    kind: str
    name: str
    sees_devices: bool
    error: str = ""
    python: str = "python"
    packages: tuple[str, ...] = ("torch",)

    @property
    def is_broken(self) -> bool:
        """True if torch cannot even be imported."""
        return self.error.startswith(("ImportError", "ModuleNotFoundError", "OSError"))


def kind_of(version: str, *, hip: str | None, cuda: str | None, has_habana: bool) -> tuple[str, str]:
    """Returns kind and name of a build from the versions in torch.version, and whether Gaudi's plugin is installed."""
    for kind, built_for in ((ROCM, hip), (CUDA, cuda)):
        if built_for is not None:
            return kind, f"torch {version} ({kind} {built_for})"
    kind = HPU if has_habana else CPU
    return kind, f"torch {version} ({kind})"


def devices_here(root: Path = Path("/")) -> dict[str, str]:
    """Returns the accelerators of this machine as kind → description, from their drivers, without torch."""
    found = {}
    nvidia = _nvidia(root)
    if nvidia:
        found[CUDA] = nvidia
    if (root / "dev/kfd").exists():
        found[ROCM] = "/dev/kfd"
    vendors = [path for path in root.glob("sys/class/accel/accel*/device/vendor") if _text(path) == HABANA_VENDOR]
    if vendors or list((root / "dev").glob("hl[0-9]*")):
        found[HPU] = f"{max(1, len(vendors))} × Gaudi"
    return found


def judge(build: Build, devices: Mapping[str, str], *, wanted: AcceleratorName, machine: str) -> Finding:
    """Compares a build with the devices (`devices_here`) and the requested accelerator of `machine`. Pure."""
    has = ", ".join(f"{kind} ({what})" for kind, what in devices.items()) or "no GPU"
    found = f"{machine} has {has}, and {build.name}"
    if wanted == "cpu":
        if CUDA in devices or ROCM in devices:
            return warning(f"{found}: scaling.use_gpu is false, so they stay idle; set scaling.use_gpu: true")
        return ok(found)
    fitting = [kind for kind in KINDS[wanted] if kind in devices]
    # What Gaudi's plugin sees is more reliable than the files of its driver.
    if build.sees_devices and (build.kind in fitting or (wanted == "hpu" and build.kind == HPU)):
        return ok(found)
    words = f' ("{build.error}")' if build.error else ""
    if wanted == "hpu" and build.kind != HPU:
        why = f"{words}, but scaling.accelerator is hpu: {GAUDI_FIX}"
    elif not fitting and wanted != "hpu":
        why = f"{words}: {_other_hardware(wanted, devices)}"
    elif wanted != "hpu" and (build.kind not in fitting or build.is_broken):
        why = f", a build for {build.kind}{words}: {_reinstall(build, fitting[0])}"
    else:
        why = f", which sees none of them{words}: {DRIVERS[build.kind]}"
    return problem(f"{found}{why}")


def _other_hardware(wanted: AcceleratorName, devices: Mapping[str, str]) -> str:
    if wanted == "auto":
        only = " (Gaudi: scaling.accelerator: hpu, for trainer: script)" if HPU in devices else ""
        return f"scaling.use_gpu is true{only}; use a machine with GPUs, or {WITHOUT_GPU}"
    there = [name for name, kinds in KINDS.items() if name != "auto" and any(kind in devices for kind in kinds)]
    return (
        f"scaling.accelerator is {wanted}; set it to {' or '.join(there or ['cpu'])}, or choose nodes that have it by "
        "scaling.label_selector"
    )


def _reinstall(build: Build, kind: str) -> str:
    """Returns the command that installs the same versions for other hardware."""
    command = f"{build.python} -m pip install --force-reinstall {' '.join(build.packages)}"
    if kind == ROCM:
        minor = re.search(r"torch==2\.(\d+)\.", command)
        rocm = ROCM_OF.get(int(minor[1]), NEWEST_ROCM) if minor else NEWEST_ROCM
        command += f" --index-url https://download.pytorch.org/whl/rocm{rocm}"
    return f"install the build for {kind}: {command}"


def _nvidia(root: Path) -> str:
    """Returns the GPUs that nvidia-smi lists or, without nvidia-smi, the number of devices in /dev."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = ["nvidia-smi", "--list-gpus"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=False)
        if lines := [line for line in result.stdout.splitlines() if line.startswith("GPU ")]:
            return f"{len(lines)} × {lines[0].partition(': ')[2].partition(' (')[0]}"
    nodes = sorted((root / "dev").glob("nvidia[0-9]*"))
    return f"{len(nodes)} × /dev/nvidia" if nodes else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
