"""Runs the demo recipe for `python task.py` without arguments, with as many workers as fit on the driver's node.

Workers and preparing tasks run on the driver's node, where a local folder is storage for all of them. So the demo needs
neither a bucket nor a shared disk. Pure, and imports neither Ray nor torch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.config.overrides import apply_overrides
from trainers.config.parts.scaling_part import CPUS_FOR_DATA
from trainers.config.schema import TrainConfig
from trainers.config.wording import counted

# The same path in the repository, in the job's copy of it, and in an installed distribution.
RECIPE = Path(__file__).parents[2] / "jobs" / "specs" / "whisper_micro.yaml"
ARGUMENTS = ("--config", str(RECIPE))
NOTICE = f"no arguments: running the demo recipe {RECIPE.name} to its end (python task.py --help lists the arguments)"
# Memory of one demo worker: imports, weights and a batch, rounded up.
WORKER_BYTES = 2**30
# Every node has 1 unit of its own resource `node:<address>`; reserving this fraction of it places a worker there.
NODE_SHARE = 0.001


@dataclass(frozen=True)
class DemoPlacement:
    """The placement of the demo.

    Attributes:
        num_workers: Number of training workers; 0 if Ray has no CPU on the driver's node, so that the driver trains.
        node_resources: Resources that every worker and task reserves to be placed on the driver's node.
    """

    num_workers: int
    node_resources: Mapping[str, float]
    config: TrainConfig
    changes: Sequence[str]

    @property
    def message(self) -> str:
        if not self.num_workers:
            return "1 process: Ray has no CPU on this node, so the driver trains itself, without Ray's workers"
        return f"{counted(self.num_workers, 'worker')} on this node, as many as fit"


def place_demo(config: TrainConfig, node: Mapping[str, float]) -> DemoPlacement:
    """Fits the recipe to a node; keeps the global batch size and the order of the utterances.

    `node` has the logical resources of the driver's node, as Ray counts them; memory is in bytes.
    """
    global_batch = config.scaling.max_workers * config.training.per_device_train_batch_size
    cpus = node.get("CPU", 0.0)
    fitting = min(cpus - CPUS_FOR_DATA, node.get("memory", math.inf) // WORKER_BYTES)
    num_workers = int(min(max(fitting, 1), global_batch)) if cpus >= 1 else 0
    own = {name: NODE_SHARE for name in node if name.startswith("node:") and not name.startswith("node:__")}
    node_resources = own if num_workers else {}
    changes: dict[str, Any] = {
        "scaling.num_workers": max(num_workers, 1),
        "scaling.resources_per_worker": node_resources,
        "training.global_batch_size": global_batch,
        "training.per_device_train_batch_size": math.ceil(global_batch / max(num_workers, 1)),
    }
    overrides = [(tuple(name.split(".")), value) for name, value in changes.items()]
    placed = TrainConfig.model_validate(apply_overrides(config.model_dump(), overrides))
    return DemoPlacement(num_workers, node_resources, placed, [f"{name}={value}" for name, value in changes.items()])
