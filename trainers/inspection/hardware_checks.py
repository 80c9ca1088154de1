"""Whether the build of torch fits the machine. Loads torch only where it is to use GPUs."""

import importlib.metadata
import importlib.util
import os
import platform
import runpy
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainers.config.optional_packages import DEEPSPEED, TRACKERS
from trainers.config.parts.scaling_part import WITHOUT_GPU
from trainers.findings import Check, Finding, ok, problem, skipped, warning
from trainers.inspection.subject import Subject

CUDA, ROCM, HPU, CPU = "CUDA", "ROCm", "HPU", "CPU"
# PCI vendor of Habana Labs; /dev/accel has accelerators of other makers too.
HABANA_VENDOR = "0x1da3"
SMI_TIMEOUT_S = 20.0
# It builds its communication on CPUs, and its optimizer for offloading, when they are first used.
DEEPSPEED_TOOLS = ("g++", "ninja")
GUIDE = "https://pytorch.org/get-started/locally"


@dataclass(frozen=True)
class Build:
    """What the installed torch was built for, its version, and whether it sees a usable GPU; False: no matter."""

    kind: str
    name: str
    sees_gpus: bool


def build_here(*, use_gpu: bool) -> Build:
    """The build of this machine's torch; only where `use_gpu` is it loaded, for seconds, to look for GPUs."""
    constants = runpy.run_path(str(importlib.metadata.distribution("torch").locate_file("torch/version.py")))
    version = f"torch {constants['__version__']}"
    sees_gpus = False
    if use_gpu:
        import torch  # noqa: PLC0415

        sees_gpus = torch.cuda.is_available()
    for kind, built_for in ((ROCM, constants["hip"]), (CUDA, constants["cuda"])):
        if built_for is not None:
            return Build(kind, f"{version} ({kind} {built_for})", sees_gpus)
    kind = HPU if importlib.util.find_spec("habana_frameworks") is not None else CPU
    return Build(kind, f"{version} ({kind})", sees_gpus)


def devices_here(root: Path = Path("/")) -> dict[str, str]:
    """Accelerators of this machine, as their drivers report them, not torch: kind → what was found."""
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


def judge(build: Build, devices: Mapping[str, str], *, use_gpu: bool, machine: str) -> Finding:
    """Compares build, devices (`devices_here`) and config for a machine, named in the message. Pure."""
    has = ", ".join(f"{kind} ({what})" for kind, what in devices.items()) or "no GPU"
    found = f"{machine} has {has}, and {build.name}"
    gpus = [kind for kind in devices if kind in (CUDA, ROCM)]
    if not use_gpu:
        if gpus:
            return warning(f"{found}: scaling.use_gpu is false, so they stay idle; set scaling.use_gpu: true")
        return ok(found)
    if not gpus:
        supported = " (this version trains on CUDA and ROCm GPUs)" if devices else ""
        return problem(f"{found}: scaling.use_gpu is true{supported}; use a machine with GPUs, or {WITHOUT_GPU}")
    if build.kind not in gpus:
        return problem(f"{found}, a build for {build.kind}: install the build for {gpus[0]} ({GUIDE})")
    if not build.sees_gpus:
        return problem(
            f"{found}, which sees none of them: update the driver, or install a torch for an older {build.kind} "
            "(nvidia-smi or rocm-smi shows what the driver supports), and check CUDA_VISIBLE_DEVICES"
        )
    return ok(found)


def check_torch_build(subject: Subject) -> Iterator[Finding]:
    """Compares what torch was built for with what this machine has."""
    if subject.elsewhere:
        yield skipped("the job runs on other machines")
        return
    use_gpu = subject.config.scaling.use_gpu
    yield judge(build_here(use_gpu=use_gpu), devices_here(), use_gpu=use_gpu, machine=platform.node())


def check_strategy(subject: Subject) -> Iterator[Finding]:
    """Looks for the packages of the strategy, for what builds its parts, and for the nodes' own disks."""
    part = subject.config.strategy
    if part.name != "deepspeed":
        yield ok(f"strategy.name: {part.name}")
        return
    if not DEEPSPEED.is_installed:
        yield subject.unreachable(DEEPSPEED.problem)
        return
    missing = [tool for tool in DEEPSPEED_TOOLS if shutil.which(tool) is None]
    if missing:
        yield subject.unreachable(
            f"strategy.name: deepspeed builds parts of itself when it first runs, and {' and '.join(missing)} is not "
            "there: install it (apt-get install g++ ninja-build)"
        )
    if part.nvme_path is not None and not Path(part.nvme_path).is_dir():
        yield subject.unreachable(f"strategy.nvme_path: {part.nvme_path} is no folder here; make it on each node")
    if not missing:
        yield ok(f"strategy.name: deepspeed with ZeRO-{part.stage}; the package is installed")


def check_trackers(subject: Subject) -> Iterator[Finding]:
    """Looks for the packages of the trackers, by name."""
    names = subject.config.training.report_to
    missing = [need for name in names if (need := TRACKERS.get(name)) is not None and not need.is_installed]
    for need in missing:
        yield subject.unreachable(need.problem)
    if not missing:
        yield ok(f"training.report_to: {', '.join(names) or 'none'}")


def _nvidia(root: Path) -> str:
    """The GPUs that NVIDIA's driver names, or what it left in /dev where its tool is missing."""
    tool = shutil.which("nvidia-smi", path=os.environ.get("PATH"))
    if tool is not None:
        try:
            result = subprocess.run(
                [tool, "--list-gpus"], capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            result = None
        lines = [line for line in (result.stdout if result else "").splitlines() if line.startswith("GPU ")]
        if lines:
            return f"{len(lines)} × {lines[0].partition(': ')[2].partition(' (')[0]}"
    nodes = sorted((root / "dev").glob("nvidia[0-9]*"))
    return f"{len(nodes)} × /dev/nvidia" if nodes else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


CHECKS = (
    Check("torch_build", "torch is built for the hardware", check_torch_build),
    Check("strategy", "the strategy's packages are installed", check_strategy),
    Check("trackers", "the trackers' packages are installed", check_trackers),
)
