"""Checks the machine for a run: storage, the Hub, packages, and the build of torch. Loads torch only to use GPUs."""

import importlib.metadata
import importlib.util
import os
import platform
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from trainers.config.locations import cache_url_of, storage_path_of
from trainers.config.optional_packages import DEEPSPEED, TRACKERS, missing_access
from trainers.distributed.hardware import BUILT_WITH_TORCH, Build, devices_here, judge, kind_of
from trainers.findings import NODE, Finding, Moment, Need, check, ok, problem, skipped
from trainers.inspection.subject import Subject
from trainers.run_folder.hub_push import repository_of
from trainers.run_folder.layout import version_of
from trainers.storage.factory import tried_out

# With these, DeepSpeed compiles its CPU communication, and its optimizer for offloading, at first use.
DEEPSPEED_TOOLS = ("g++", "ninja")


def build_here(*, use_gpu: bool) -> Build:
    """Returns the build of torch here. Only if `use_gpu`, imports torch, which takes seconds, to look for GPUs."""
    constants = runpy.run_path(str(importlib.metadata.distribution("torch").locate_file("torch/version.py")))
    sees_devices = False
    if use_gpu:
        import torch  # noqa: PLC0415

        sees_devices = torch.cuda.is_available()
    has_habana = importlib.util.find_spec("habana_frameworks") is not None
    kind, name = kind_of(constants["__version__"], hip=constants["hip"], cuda=constants["cuda"], has_habana=has_habana)
    # The public versions, which are the same for all builds.
    versions = {package: (version_of(package) or "").partition("+")[0] for package in BUILT_WITH_TORCH}
    packages = tuple(f"{package}=={version}" for package, version in versions.items() if version)
    return Build(kind, name, sees_devices, python=sys.executable, packages=packages)


@check(NODE)
def check_storage(subject: Subject) -> Iterator[Finding]:
    """Writes, reads, lists and deletes a small file under run.storage_path and, if set, data.cache_dir."""
    roots = {"run.storage_path": storage_path_of(subject.config)}
    if subject.config.data.cache_dir is not None:
        roots["data.cache_dir"] = cache_url_of(subject.config)
    for field, url in roots.items():
        yield tried_out(field, url, subject.config.run.storage_options, elsewhere=subject.elsewhere)


@check(NODE)
def check_hub(subject: Subject) -> Iterator[Finding]:
    """Checks whether the Hub lets the token write to the model's repository; creates nothing."""
    part, name = subject.config.hub, subject.config.run.name
    if not part.push:
        yield ok("hub.push is false: nothing is pushed to the Hub")
    elif part.model_id is None and name is None:
        yield skipped("hub.model_id and run.name are null: the name is made when the run begins")
    else:
        yield ok(f"the best model can be pushed to {repository_of(part, str(name), make=False).url}")


@check(Need(Moment.INSPECTION, lambda subject: "the job runs on other machines" if subject.elsewhere else None))
def check_torch_build(subject: Subject) -> Iterator[Finding]:
    """Compares the build of torch with the hardware of this machine."""
    scaling = subject.config.scaling
    yield judge(build_here(use_gpu=scaling.use_gpu), devices_here(), wanted=scaling.device, machine=platform.node())


@check(NODE)
def check_strategy(subject: Subject) -> Iterator[Finding]:
    """Checks what DeepSpeed needs on a node: its package, tools to compile extensions, and `strategy.nvme_path`."""
    part = subject.config.strategy
    if part.name != "deepspeed":
        yield ok(f"strategy.name: {part.name}")
        return
    if not DEEPSPEED.is_installed:
        yield problem(DEEPSPEED.problem)
        return
    missing = [tool for tool in DEEPSPEED_TOOLS if shutil.which(tool) is None]
    if missing:
        yield problem(
            f"strategy.name: deepspeed builds parts of itself when it first runs, and needs {' and '.join(missing)}, "
            "not found here: install them (apt-get install g++ ninja-build)"
        )
    if part.nvme_path is not None and not Path(part.nvme_path).is_dir():
        yield problem(f"strategy.nvme_path: {part.nvme_path} is not a folder of this machine; create it on each node")
    if not missing:
        yield ok(f"strategy.name: deepspeed with ZeRO-{part.stage}; the package is installed")


@check(NODE)
def check_trackers(subject: Subject) -> Iterator[Finding]:
    """Checks that the packages of the trackers are installed, and that credentials of their servers are set."""
    names = subject.config.training.report_to
    needs = [TRACKERS[name] for name in names if name in TRACKERS]
    missing = [need.problem for need in needs if not need.is_installed] + missing_access(names, os.environ)
    yield from map(problem, missing)
    if not missing:
        yield ok(f"training.report_to: {', '.join(names) or 'none'}")


STORAGE = (check_storage, check_hub)
HARDWARE = (check_torch_build, check_strategy, check_trackers)
