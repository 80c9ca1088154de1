"""How long a stopped attempt may take to store its last checkpoint: by its size, or as last measured. Pure."""

from collections.abc import Mapping
from typing import Any

from jobs.model import Progress
from trainers.config.family_table import part_for
from trainers.config.parts.model_part import SizeEstimate
from trainers.config.parts.run_part import BYTES_PER_NUMBER, BYTES_PER_WEIGHT

LEAST_S, MOST_S = 120, 3600
# What an unmodified program leaves, which may be of any size.
STORING_S = 60
# Of a file server or a bucket, until an attempt has measured its own.
ASSUMED_BYTES_PER_S = 50e6
# The last checkpoint is stored after the one before it, and was written to the node's own disk first.
CHECKPOINTS = 3


def stop_grace_s(config: Mapping[str, Any], progress: Progress | None) -> int:
    """The grace of an attempt, in seconds: `job.stop_grace_s`, or by how long its last checkpoint took, or would."""
    given = config["job"].get("stop_grace_s")
    if given is not None:
        return int(given)
    if config.get("trainer") == "script":
        # The program's own, and the time to store what it then leaves.
        return int(config["script"]["stop_grace_s"]) + STORING_S
    measured = progress.checkpoint_s if progress is not None else None
    if measured is None:
        measured = checkpoint_bytes_of(config) / ASSUMED_BYTES_PER_S
    return round(min(max(LEAST_S, CHECKPOINTS * measured), MOST_S))


def checkpoint_bytes_of(config: Mapping[str, Any]) -> float:
    """About how large a checkpoint is at most; 0 where the model's name does not say it.

    A config of a version without `adapt` or `strategy` trains all weights by DDP.
    """
    (weights, width), adapt = size_of(config["model"]), config.get("adapt", {})
    if config.get("strategy", {}).get("name", "ddp") != "ddp":
        # Shards of the weights, and the optimizer's own copy of them, in addition to what each checkpoint holds.
        return weights * (BYTES_PER_WEIGHT + 2 * BYTES_PER_NUMBER)
    if adapt.get("method") == "lora":
        # r × (m + n) weights for an m × n layer with n ≥ m ≥ width: 2 × r / width of the layer's at most.
        share: float = 2 * adapt["r"] / max(1, width)
        return weights * min(1.0, share) * BYTES_PER_WEIGHT
    return weights * BYTES_PER_WEIGHT


def size_of(model: Mapping[str, Any]) -> SizeEstimate:
    """How large the model of a run is, as far as its config tells."""
    part, fields = part_for(model)
    return part.model_construct(**fields).size
