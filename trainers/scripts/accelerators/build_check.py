"""Whether the torch of a program's interpreter is built for what its node has. Loads no torch in this process."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from trainers.distributed.console import print_line
from trainers.distributed.hardware import BUILT_WITH_TORCH, KINDS, Build, devices_here, judge, kind_of
from trainers.errors import ResourceError
from trainers.findings import Level
from trainers.scripts.accelerators.accelerator import Accelerator

# torch, and a device, may take a minute to load from a disk of the network.
PROBE_TIMEOUT_S = 300.0
# Run by the program's interpreter, which may be older than ours and has nothing of Rayscribe. It does a sum on a GPU;
# of Gaudis it asks the plugin alone, since one has one user at a time. A torch with that plugin is one for Gaudi,
# whatever it was made from.
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
    """Refuses a torch that cannot use this node's devices, before a program finds out in its own words.

    One without torch may be what a program wants: a line says so. Call it once a node, and where it has ranks.

    Args:
        python: The program's interpreter.
        accelerator: What its ranks hold, see `known_accelerators.accelerator_of`.
        machine: The node, for messages.
        environment: That of the program.

    Raises:
        ResourceError: has what is there, and the line that fixes it.
    """
    if accelerator.resource is None:
        return
    build = _build_of(python, accelerator, machine, environment)
    if build is None:
        print_line(f"{python} on {machine} has no torch, so whether it fits the node's devices was not checked")
        return
    # What a machine's GPUs are, a process is started to tell.
    if build.sees_devices and build.kind in KINDS[accelerator.name]:
        return
    finding = judge(build, devices_here(), wanted=accelerator.name, machine=machine)
    if finding.level == Level.ERROR:
        raise ResourceError(finding.text)


def _build_of(python: str, accelerator: Accelerator, machine: str, environment: Mapping[str, str]) -> Build | None:
    """The build of an interpreter's torch; None where it has none."""
    command = [python, "-c", PROBE, accelerator.name]
    try:
        # A folder of the program's may hide a package.
        done = subprocess.run(
            command,
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise ResourceError(
            f"script.python: {python} cannot be run on {machine} ({error.strerror}): give an interpreter that every "
            "node has, by its path"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ResourceError(
            f"{python} on {machine} did not load torch and use a device within {PROBE_TIMEOUT_S:.0f} s: try it there "
            "by hand, and look at the driver (nvidia-smi, rocm-smi or hl-smi)"
        ) from error
    try:
        found: dict[str, Any] | None = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except ValueError as error:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise ResourceError(
            f"{python} on {machine} ended with {done.returncode} when it was to load torch and use a device: {last}; "
            "try it there by hand, and look at the driver (nvidia-smi, rocm-smi or hl-smi)"
        ) from error
    if found is None:
        return None
    kind, name = kind_of(found["__version__"], hip=found["hip"], cuda=found["cuda"], has_habana=found["has_habana"])
    return Build(
        kind, name, found["sees_devices"], found["error"], python=found["python"], packages=tuple(found["packages"])
    )
