"""Whether every node sees the folders that runs and prepared sets are written to; found before anything is prepared."""

import contextlib
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainers.config.locations import storage_path_of
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import is_url
from trainers.errors import ConfigError
from trainers.pipeline.on_ray.worker_checks import see_files
from trainers.storage import open_storage

# How long a node is waited for that is busy; training will say what it lacks.
TIMEOUT_S = 30.0


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
