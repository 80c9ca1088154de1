"""What nodes are checked for: that all see the folders that are written to; and by each worker torch's build and data.

Ray Train's controller sends it to the workers and imports this module: what training imports is imported on a worker.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainers.config.locations import storage_path_of
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import DEFAULT_STORAGE_OPTIONS, is_url
from trainers.errors import ConfigError, DataError, ResourceError
from trainers.storage import open_storage

# A network file system may show a new file this much later.
FILE_VISIBILITY_TIMEOUT_S, POLL_S = 5.0, 0.25
# How long a node is waited for that is busy; training will say what it lacks.
TIMEOUT_S = 30.0
# Of each prepared set.
FILE = "summary.json"


@dataclass(frozen=True)
class WorkerCheck:
    """The check; calling it checks the node of the calling process."""

    use_gpu: bool
    files: tuple[str, ...]

    @classmethod
    def of(cls, prepared: Iterable[str], *, use_gpu: bool) -> "WorkerCheck":
        return cls(use_gpu, tuple(f"{url}/{FILE}" for url in prepared if not is_url(url)))

    def __call__(self) -> None:
        """Checks this node.

        Raises:
            ResourceError: torch is not built for its GPUs, or it has none.
            DataError: it does not have the data.
        """
        node = ray.util.get_node_ip_address()
        if self.use_gpu:
            _check_torch(node)
        _check_files(node, self.files)


def _check_torch(node: str) -> None:
    from trainers.findings import Level  # noqa: PLC0415
    from trainers.inspection.hardware_checks import build_here, devices_here, judge  # noqa: PLC0415

    build = build_here(use_gpu=True)
    # What its GPUs are, a process is started to tell.
    if build.sees_gpus:
        return
    finding = judge(build, devices_here(), use_gpu=True, machine=node)
    if finding.level == Level.ERROR:
        raise ResourceError(finding.text)


def _check_files(node: str, files: tuple[str, ...]) -> None:
    from trainers.findings import Level  # noqa: PLC0415
    from trainers.inspection.node_checks import judge_files  # noqa: PLC0415

    see_files(files)
    finding = judge_files(files, DEFAULT_STORAGE_OPTIONS)
    if finding.level == Level.ERROR:
        raise DataError(f"on {node}: {finding.text}")


def see_files(files: Sequence[str]) -> list[bool]:
    """Which files this node sees, all of them or after FILE_VISIBILITY_TIMEOUT_S."""
    end = time.monotonic() + FILE_VISIBILITY_TIMEOUT_S
    while not all(found := [Path(file).exists() for file in files]) and time.monotonic() < end:
        time.sleep(POLL_S)
    return found


def refuse_unshared_folders(config: TrainConfig, task_resources: Mapping[str, float]) -> None:
    """Refuses a folder that workers or preparing tasks on other nodes would not find what the driver writes in.

    Raises:
        ConfigError: names the folder and the nodes.
    """
    own = ray.get_runtime_context().get_node_id()
    wanted = (config.scaling.worker_resources, {"CPU": 1.0, **task_resources})
    nodes = [
        node
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] != own and any(_holds(node["Resources"], each) for each in wanted)
    ]
    folders = {"run.storage_path": storage_path_of(config), "data.cache_dir": config.data.cache_dir}
    local = {name: folder for name, folder in folders.items() if folder is not None and not is_url(folder)}
    if not nodes or not local:
        return
    marker = f".rayscribe-shared-{uuid4().hex}"
    try:
        for folder in local.values():
            open_storage(folder, config.run.storage_options).write_bytes(marker, b"")
        found = _ask(nodes, [f"{folder}/{marker}" for folder in local.values()])
    finally:
        for folder in local.values():
            open_storage(folder, config.run.storage_options).delete(marker)
    for number, (name, folder) in enumerate(local.items()):
        without = sorted(address for address, seen in found.items() if not seen[number])
        if without:
            raise ConfigError(
                f"{name}: {folder} is not one folder for all nodes: what the driver writes there is not seen on "
                f"{', '.join(without[:5])}{', …' if len(without) > 5 else ''}: mount the same file system on all "
                "nodes, or use s3://"
            )


def _ask(nodes: list[dict[str, Any]], files: list[str]) -> dict[str, list[bool]]:
    """Which files each node sees, by its address; nodes that do not respond in time are left out."""
    remote: Any = ray.remote(see_files)
    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        options = remote.options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        asked[options.remote(files)] = node["NodeManagerAddress"]
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=TIMEOUT_S)
    for reference in late:
        ray.cancel(reference, force=True)
    seen = {}
    for reference in done:
        # A node may be lost meanwhile.
        with contextlib.suppress(RayError):
            seen[asked[reference]] = ray.get(reference)
    return seen


def _holds(node: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return all(node.get(name, 0.0) >= amount for name, amount in wanted.items())
