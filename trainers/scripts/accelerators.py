"""The accelerators for programs, and a check that torch is built for those of a node. Loads no torch."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainers.config.parts.scaling_part import AcceleratorName, ScalingPart
from trainers.distributed.console import print_line
from trainers.distributed.hardware import BUILT_WITH_TORCH, KINDS, Build, devices_here, judge, kind_of
from trainers.errors import ResourceError
from trainers.findings import Level

# Variables by `script.hpu_mode`. https://docs.habana.ai/en/latest/PyTorch/Runtime_Flags.html; lazy mode has collectives
# within graphs.
HPU_MODES: Mapping[str | None, Mapping[str, str]] = {
    None: {},
    "lazy": {"PT_HPU_LAZY_MODE": "1", "PT_HPU_ENABLE_LAZY_COLLECTIVES": "true"},
    "eager": {"PT_HPU_LAZY_MODE": "0"},
}


@dataclass(frozen=True)
class Accelerator:
    """A kind of accelerator.

    Attributes:
        name: Name in `scaling.accelerator`.
        resource: Ray's resource, of which a worker holds one or more; None for CPUs.
        visibility: Variables that list the devices visible to a process.
        hidden: Variables, with values, that hide devices that a worker does not hold.
    """

    name: AcceleratorName
    resource: str | None
    visibility: tuple[str, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict)

    def visible(self, ids_by_rank: Sequence[Sequence[str]]) -> dict[str, str]:
        """Returns variables with which each process of a node sees the devices of all ranks there, as under torchrun.

        `ids_by_rank` are Ray's ids of the devices that each rank holds, in the order of local ranks, so that a program
        finds its device by LOCAL_RANK. Raises ResourceError if two ranks hold the same device.
        """
        ids = [each for held in ids_by_rank for each in held]
        shared = sorted({each for each in ids if ids.count(each) > 1})
        if shared:
            raise ResourceError(
                f"several ranks of a node hold {self.resource} {', '.join(shared)}, and a program takes the device of "
                f"its local rank: set scaling.resources_per_worker.{self.resource}: 1"
            )
        # Without ids, Ray manages no devices of this kind.
        return {**self.hidden, **(dict.fromkeys(self.visibility, ",".join(ids)) if ids else {})}


# Ray leaves GPUs visible to workers that hold none. HIP treats an empty list as unset, and -1 as no device.
CPU = Accelerator("cpu", None, hidden={"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"})
CUDA = Accelerator("cuda", "GPU", ("CUDA_VISIBLE_DEVICES",))
# HIP reads the first variable or, if it is not set, the second; many programs read the second. ROCR_VISIBLE_DEVICES,
# which would renumber the devices of both, is not changed, since Ray's ids are within it.
ROCM = Accelerator("rocm", "GPU", ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
# HABANA_VISIBLE_DEVICES is read by the container's runtime, this variable by the program.
HPU = Accelerator("hpu", "HPU", ("HABANA_VISIBLE_MODULES",))
ACCELERATORS: Mapping[str, Accelerator] = {each.name: each for each in (CPU, CUDA, ROCM, HPU)}


def accelerator_of(scaling: ScalingPart, root: Path = Path("/")) -> Accelerator:
    """Returns the accelerator of the workers.

    `auto` is the vendor of this machine's GPUs, by its devices below `root`. Both vendors have the same resource, but
    not the same environment variables, so a program's environment has to be made on its own node.
    """
    if scaling.device == "auto":
        is_amd = (root / "dev/kfd").exists() and not list((root / "dev").glob("nvidia[0-9]*"))
        return replace(ROCM if is_amd else CUDA, name="auto")
    return ACCELERATORS[scaling.device]


# Loading torch and its device libraries from a network disk may take a minute.
PROBE_TIMEOUT_S = 300.0
# Run by the program's interpreter, which may be older than ours and does not have Rayscribe. Computes a sum on a GPU;
# for a Gaudi, which has one user at a time, it only asks the plugin. A torch with that plugin counts as built for
# Gaudi, whatever its versions say.
PROBE = f"""
import importlib.metadata, importlib.util, json, runpy, sys

def use_device(kind):
    import torch
    if kind != "hpu":
        torch.ones(1, device="cuda").add_(1)
        return True
    import habana_frameworks.torch
    is_available = getattr(getattr(torch, "hpu", None), "is_available", None)
    return is_available is None or bool(is_available())

def packages():
    for name in {BUILT_WITH_TORCH!r}:
        try:
            yield name + "==" + importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            pass

def probe(kind):
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return None
    constants = runpy.run_path(list(spec.submodule_search_locations)[0] + "/version.py")
    found = {{name: constants.get(name) for name in ("__version__", "hip", "cuda")}}
    found.update(sees_devices=False, error="", packages=list(packages()), python=sys.executable)
    found["has_habana"] = importlib.util.find_spec("habana_frameworks") is not None
    if kind == "hpu" and found["has_habana"]:
        found.update(hip=None, cuda=None)
    try:
        found["sees_devices"] = use_device(kind)
    except Exception as error:
        found["error"] = type(error).__name__ + ": " + (str(error).strip().splitlines() or [""])[0]
    return found

print("\\n" + json.dumps(probe(sys.argv[1])))
"""


def check_build(python: str, accelerator: Accelerator, machine: str, environment: Mapping[str, str]) -> None:
    """Refuses a torch that cannot use this node's devices, before a program fails with its own message.

    Only prints a line if torch is missing, which may be intended. Called once per node, and only on nodes with ranks.

    Raises:
        ResourceError: torch of the interpreter `python` cannot use the devices, or cannot be checked.
    """
    if accelerator.resource is None:
        return
    build = _build_of(python, accelerator, machine, environment)
    if build is None:
        print_line(f"{python} on {machine} has no torch, so whether it fits the node's devices was not checked")
        return
    # Describing the devices for a message starts a process, which is not necessary if torch sees them.
    if build.sees_devices and build.kind in KINDS[accelerator.name]:
        return
    finding = judge(build, devices_here(), wanted=accelerator.name, machine=machine)
    if finding.level == Level.ERROR:
        raise ResourceError(finding.text)


def _build_of(python: str, accelerator: Accelerator, machine: str, environment: Mapping[str, str]) -> Build | None:
    """Returns the build of an interpreter's torch; None if it has no torch."""
    try:
        # Runs in "/", since files in a folder of the program may hide a package.
        done = subprocess.run(
            [python, "-c", PROBE, accelerator.name],
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
        found: dict[str, Any] | None = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except OSError as error:
        raise ResourceError(
            f"script.python: {python} cannot be run on {machine} ({error.strerror}): give an interpreter that every "
            "node has, by its path"
        ) from error
    except (subprocess.TimeoutExpired, ValueError) as error:
        if isinstance(error, ValueError):
            last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            problem = f"ended with {done.returncode} when it was to load torch and use a device: {last}"
        else:
            problem = f"did not load torch and use a device within {PROBE_TIMEOUT_S:.0f} s"
        raise ResourceError(
            f"{python} on {machine} {problem}; try it there by hand, and look at the driver (nvidia-smi, rocm-smi or "
            "hl-smi)"
        ) from error
    if found is None:
        return None
    kind, name = kind_of(found["__version__"], hip=found["hip"], cuda=found["cuda"], has_habana=found["has_habana"])
    return Build(
        kind, name, found["sees_devices"], found["error"], python=found["python"], packages=tuple(found["packages"])
    )
