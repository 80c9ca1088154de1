"""LayerDrop where weights are sharded: a rank that skips a layer would leave the others waiting for its shard of it."""

from typing import Any

from torch import nn


def run_every_layer(network: nn.Module) -> tuple[str, ...]:
    """Stops a network from skipping layers at random while it trains (LayerDrop, https://arxiv.org/abs/1909.11556).

    Whisper's and Speech2Text's encoders and decoders keep the probability as an attribute, wav2vec2's in their config;
    ranks draw by seeds of their own.

    Returns:
        What was changed, for the log.
    """
    highest = 0.0
    for module in network.modules():
        holders: tuple[Any, ...] = (module, getattr(module, "config", None))
        for holder in holders:
            probability = getattr(holder, "layerdrop", None)
            if isinstance(probability, float) and probability > 0:
                highest = max(highest, probability)
                holder.layerdrop = 0.0
    if not highest:
        return ()
    return (f"no layer is skipped at random (layerdrop was {highest:g}): ranks that shard weights run the same layers",)
