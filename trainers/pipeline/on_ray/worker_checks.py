"""What nodes are checked for: folders that are written to, and recordings; and by each worker torch's build and data.

Ray Train's controller sends it to the workers and imports this module: what training imports is imported on a worker.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainers.config.locations import storage_path_of
from trainers.config.parts.scaling_part import GPU_ACCELERATORS, AcceleratorName
from trainers.config.schema import TrainConfig
from trainers.config.secrets import resolve_secrets
from trainers.config.storage_location import DEFAULT_STORAGE_OPTIONS, is_url
from trainers.data.sources.recording_readers import RecordingReader
from trainers.distributed.ray_connection import node_names
from trainers.errors import AudioError, ConfigError, DataError, ResourceError, StorageError
from trainers.findings import named
from trainers.storage import open_storage

Answer = TypeVar("Answer")

# A network file system may show a new file this much later.
FILE_VISIBILITY_TIMEOUT_S, POLL_S = 5.0, 0.25
# How long a node is waited for that is busy, or imports from a slow disk; training will say what it lacks.
TIMEOUT_S = 60.0
# Recordings of a split that a node is asked to read before any is prepared.
EXAMPLES = 8
# Of each prepared set.
FILE = "summary.json"


@dataclass(frozen=True)
class WorkerCheck:
    """The check; calling it checks the node of the calling process."""

    device: AcceleratorName
    files: tuple[str, ...]

    @classmethod
    def of(cls, prepared: Iterable[str], *, device: AcceleratorName) -> "WorkerCheck":
        return cls(device, tuple(f"{url}/{FILE}" for url in prepared if not is_url(url)))

    def __call__(self) -> None:
        """Checks this node.

        Raises:
            ResourceError: torch is not built for its GPUs, or it has none.
            DataError: it does not have the data.
        """
        node = ray.util.get_node_ip_address()
        if self.device in GPU_ACCELERATORS:
            _check_torch(node, self.device)
        _check_files(node, self.files)


def _check_torch(node: str, device: AcceleratorName) -> None:
    from trainers.distributed.hardware import KINDS, devices_here, judge  # noqa: PLC0415
    from trainers.findings import Level  # noqa: PLC0415
    from trainers.inspection.hardware_checks import build_here  # noqa: PLC0415

    build = build_here(use_gpu=True)
    # What its GPUs are, a process is started to tell.
    if build.sees_devices and build.kind in KINDS[device]:
        return
    finding = judge(build, devices_here(), wanted=device, machine=node)
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
    nodes = _other_nodes(config.scaling.worker_resources, {"CPU": 1.0, **task_resources})
    folders = {"run.storage_path": storage_path_of(config), "data.cache_dir": config.data.cache_dir}
    local = {name: folder for name, folder in folders.items() if folder is not None and not is_url(folder)}
    if not nodes or not local:
        return
    marker = f".rayscribe-shared-{uuid4().hex}"
    try:
        for folder in local.values():
            open_storage(folder, config.run.storage_options).write_bytes(marker, b"")
        found = _ask(nodes, see_files, [f"{folder}/{marker}" for folder in local.values()])
    finally:
        for folder in local.values():
            open_storage(folder, config.run.storage_options).delete(marker)
    for number, (name, folder) in enumerate(local.items()):
        without = sorted(node for node, seen in found.items() if not seen[number])
        if without:
            raise ConfigError(
                f"{name}: {folder} is not one folder for all nodes: what the driver writes there is not seen on "
                f"{', '.join(without[:5])}{', …' if len(without) > 5 else ''}: mount the same file system on all "
                "nodes, or use a bucket"
            )


def refuse_unread_recordings(
    blocks: Sequence[pa.Table], reader: RecordingReader, task_resources: Mapping[str, float]
) -> None:
    """Asks each node that may prepare rows to read some of their recordings: those that only it lacks would be lost.

    Raises:
        DataError: a node cannot read what the driver's node reads; names node, recording and reason.
    """
    nodes = _other_nodes({"CPU": 1.0, **task_resources})
    if not nodes:
        return
    counts = np.cumsum([len(block) for block in blocks])
    rows = []
    for number in np.unique(np.linspace(0, counts[-1] - 1, EXAMPLES).astype(int)).tolist():
        block = int(np.searchsorted(counts, number, side="right"))
        rows += blocks[block].slice(number - (counts[block] - len(blocks[block])), 1).to_pylist()
    here = unread(reader, rows)
    for node, problems in sorted(_ask(nodes, unread, reader, rows).items()):
        lacking = [f"{name}: {reason}" for name, reason in problems.items() if name not in here]
        if lacking:
            raise DataError(
                f"on {node}: {len(lacking)} of {len(rows)} recordings cannot be read that are read on the driver's "
                f"node ({named(lacking)}): put them where every node can read them under the same path, or into a "
                "bucket"
            )


def unread(reader: RecordingReader, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Why recordings of rows cannot be read on this node, by their names."""
    resolve_secrets(os.environ)
    problems: dict[str, str] = {}
    for row in rows:
        try:
            (found,) = reader.read([row])
        except (DataError, StorageError) as error:
            found = AudioError(str(error))
        if isinstance(found, AudioError):
            problems[str(row["audio"] or row["id"])] = str(found)
    return problems


def _other_nodes(*wanted: Mapping[str, float]) -> list[dict[str, Any]]:
    """Nodes next to the driver's which can ever hold one of these."""
    own = ray.get_runtime_context().get_node_id()
    return [
        node
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] != own and any(_holds(node["Resources"], each) for each in wanted)
    ]


def _ask(nodes: list[dict[str, Any]], question: Callable[..., Answer], *arguments: Any) -> dict[str, Answer]:
    """What each node responds, by its name in messages; nodes that do not respond in time are left out."""
    remote: Any = ray.remote(question)
    asked, names = {}, node_names(nodes)
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        options = remote.options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        asked[options.remote(*arguments)] = names[node["NodeID"]]
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=TIMEOUT_S)
    for reference in late:
        ray.cancel(reference, force=True)
    answers = {}
    for reference in done:
        # A node may be lost meanwhile.
        with contextlib.suppress(RayError):
            answers[asked[reference]] = ray.get(reference)
    return answers


def _holds(node: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return all(node.get(name, 0.0) >= amount for name, amount in wanted.items())
