"""Which linear layers get a LoRA adapter. Needs no peft."""

from collections.abc import Sequence
from typing import Any

from trainers.errors import ConfigError
from trainers.models.adaptation.trained_weights import linear_layers

# What attentions name their projections: Whisper, wav2vec2 and others; Moonshine; wav2vec2-BERT; BERT as a decoder.
ATTENTION = (
    *("q_proj", "k_proj", "v_proj", "out_proj", "o_proj"),
    *("linear_q", "linear_k", "linear_v", "linear_out"),
    *("query", "key", "value"),
)
# Attentions that compute with the weights of their projections, not by calling them: an adapter there has no effect.
NOT_CALLED = {"wavlm": ("q_proj", "k_proj", "v_proj", "out_proj")}
INSTEAD = ("intermediate_dense", "output_dense")


def target_modules(network: Any, wanted: Sequence[str] | None) -> list[str]:
    """Ends of the names of the linear layers that get an adapter; by default all projections of every attention.

    Raises:
        ConfigError: a name matches no linear layer, or one whose adapter would have no effect or could not be merged.
    """
    kind, layers = network.config.model_type, list(linear_layers(network))
    if wanted is None:
        default = INSTEAD if kind in NOT_CALLED else ATTENTION
        found = [name for name in default if _ending(layers, name)]
        if not found:
            raise ConfigError(
                f"adapt.target_modules is null, but no attention of {kind} has a projection of a known name: name "
                f"some of its linear layers: {_last_steps(layers)}"
            )
        return found
    for name in wanted:
        if not (matched := _ending(layers, name)):
            raise ConfigError(
                f"adapt.target_modules: {name} is the end of no linear layer's name in {kind}: name some of "
                f"{_last_steps(layers)}"
            )
        if any(layer.rpartition(".")[2] in NOT_CALLED.get(kind, ()) for layer in matched):
            raise ConfigError(
                f"adapt.target_modules: {name}: the attention of {kind} never calls this layer, so that an adapter "
                f"there has no effect: name others, e.g. {', '.join(INSTEAD)}"
            )
        if shared := [layer for layer in matched if f"{layer}.weight" in (network._tied_weights_keys or {})]:
            raise ConfigError(
                f"adapt.target_modules: {name}: the weights of {shared[0]} are the embeddings' too, so that merging an "
                "adapter there would change both: leave it out"
            )
    return list(wanted)


def _ending(layers: Sequence[str], name: str) -> list[str]:
    return [layer for layer in layers if layer == name or layer.endswith(f".{name}")]


def _last_steps(layers: Sequence[str]) -> str:
    return ", ".join(sorted({layer.rpartition(".")[2] for layer in layers}))
