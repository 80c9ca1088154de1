"""How long a stopped attempt may take to store its last checkpoint: by its size, or as last measured. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from jobs.model import Progress
from trainers.config.parts.checkpoint_part import BYTES_PER_NUMBER, BYTES_PER_WEIGHT

LEAST_S, MOST_S = 120, 3600
# Of a file server or a bucket, until an attempt has measured its own.
ASSUMED_BYTES_PER_S = 50e6
# The last checkpoint is stored after the one before it, and was written to the node's own disk first.
CHECKPOINTS = 3
# Weights of the released models, from the table in OpenAI's model card.
RELEASED = {
    "tiny": 39e6,
    "base": 74e6,
    "small": 244e6,
    "medium": 769e6,
    "large": 1550e6,
    "large-v2": 1550e6,
    "large-v3": 1550e6,
    "large-v3-turbo": 809e6,
}
# Of the released models, tiny's.
LEAST_WIDTH = 384
_RELEASED = re.compile(r"whisper-([a-z0-9-]+?)(\.en)?$")


def stop_grace_s(config: Mapping[str, Any], progress: Progress | None) -> int:
    """The grace of an attempt, whole seconds.

    Args:
        config: The run's config; `job.stop_grace_s` counts where it is given.
        progress: How far the attempt before came; None for the first.
    """
    given = config["job"].get("stop_grace_s")
    if given is not None:
        return int(given)
    measured = progress.checkpoint_s if progress is not None else None
    if measured is None:
        measured = checkpoint_bytes_of(config) / ASSUMED_BYTES_PER_S
    return round(min(max(LEAST_S, CHECKPOINTS * measured), MOST_S))


def checkpoint_bytes_of(config: Mapping[str, Any]) -> float:
    """About how large a checkpoint is at most; 0 where the model's name does not say it.

    Args:
        config: The run's config; one of a version without `adapt` or `strategy` trains all weights by DDP.
    """
    model, adapt = config["model"], config.get("adapt", {})
    weights = weights_of(model)
    if config.get("strategy", {}).get("name", "ddp") != "ddp":
        # Shards of the weights, and the optimizer's own copy of them, beside what each checkpoint holds.
        return weights * (BYTES_PER_WEIGHT + 2 * BYTES_PER_NUMBER)
    if adapt.get("method") == "lora":
        # r × (m + n) weights beside an m × n layer with n ≥ m ≥ width: 2 × r / width of the layer's at most.
        width = model["d_model"] if model["init"] == "scratch" else LEAST_WIDTH
        share: float = 2 * adapt["r"] / width
        return weights * min(1.0, share) * BYTES_PER_WEIGHT
    return weights * BYTES_PER_WEIGHT


def weights_of(model: Mapping[str, Any]) -> float:
    """About how many weights a model has; 0 where its name does not say it."""
    if model["init"] == "scratch":
        width = model["d_model"]
        # Attention has four square matrices, a decoder layer two attentions, and a feed-forward layer two matrices.
        feed_forward = 2 * width * (model["ffn_dim"] or 4 * width)
        encoder = model["encoder_layers"] * (4 * width**2 + feed_forward)
        decoder = model["decoder_layers"] * (8 * width**2 + feed_forward)
        return float(encoder + decoder + model["vocab_size"] * width)
    released = _RELEASED.search(str(model["name_or_path"]).rstrip("/"))
    return RELEASED.get(released[1], 0.0) if released is not None else 0.0
