"""Selects the weights of a network that a method trains, by the parts that its family names."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PretrainedConfig

from trainers.config.parts.model_part import ModelPart
from trainers.config.parts.training_part import AdaptPart
from trainers.errors import ConfigError
from trainers.models.adaptation import network_parts
from trainers.models.adaptation.network_parts import DECODER, ENCODER, HEAD, Parts, is_below
from trainers.models.families import family_of_type
from trainers.models.family import Family

# Names of the modules of decoders' cross-attention, including their norms.
CROSS_ATTENTION = re.compile(r"(encoder_attn|crossattention|cross_attn)")
# Names of encoders' and decoders' list of layers.
_LAYERS = ("layers", "layer", "h", "block")
# Names of attentions' projections: Whisper, wav2vec2 and others; Moonshine; wav2vec2-BERT; BERT as a decoder.
ATTENTION = (
    *("q_proj", "k_proj", "v_proj", "out_proj", "o_proj"),
    *("linear_q", "linear_k", "linear_v", "linear_out"),
    *("query", "key", "value"),
)
# Attentions that use their projections' weights without calling them, so that adapters there have no effect.
NOT_CALLED = {"wavlm": ("q_proj", "k_proj", "v_proj", "out_proj")}
INSTEAD = ("intermediate_dense", "output_dense")


def train_only(network: Any, part: AdaptPart) -> None:
    """Freezes every weight of a network that the method does not train; frozen weights stay frozen."""
    names = trained_names(network, part)
    for name, weight in network.named_parameters():
        weight.requires_grad_(weight.requires_grad and name in names)


def trained_names(network: Any, part: AdaptPart) -> frozenset[str]:
    """Returns the names of the weights that a method trains, as in `network.named_parameters()`; empty for lora.

    Raises ConfigError if the network has no such weights.
    """
    weights = [name for name, _ in network.named_parameters()]
    if part.method == "full":
        return frozenset(weights)
    if part.method == "lora":
        return frozenset()
    parts = parts_of(network)
    if part.method == "freeze_encoder":
        chosen = [module for name, modules in parts.items() if name != ENCODER for module in modules]
    elif part.method == "decoder_only":
        chosen = _decoder_without_cross_attention(network, parts)
    else:
        chosen = [*_last_layers(network, parts, part.n or 0), *parts.get(network_parts.JOINT, ()), *parts.get(HEAD, ())]
    names = frozenset(name for name in weights if any(is_below(name, module) for module in chosen))
    if not 0 < len(names) < len(weights):
        found = "all" if names else "none"
        raise ConfigError(
            f"adapt.method {part.method} would train {found} of the weights of {network.config.model_type}, which has "
            f"the parts {', '.join(parts)}: use another method"
        )
    return names


def parts_of(network: Any) -> Parts:
    """Returns the parts of a network, by its family; raises as `check_parts`."""
    parts = family_of_type(network.config.model_type).parts(network)
    network_parts.check_parts(network, parts)
    return parts


def count(network: Any) -> tuple[int, int]:
    """Returns the number of trained weights of a network, and of all its weights."""
    weights = list(network.parameters())
    return sum(item.numel() for item in weights if item.requires_grad), sum(item.numel() for item in weights)


def heads(network: Any) -> Sequence[str]:
    """Returns the names of separate output layers, which every method trains, since a run may create them."""
    return parts_of(network).get(HEAD, ())


def _decoder_without_cross_attention(network: Any, parts: Parts) -> list[str]:
    kind, modules = network.config.model_type, parts.get(DECODER)
    if modules is None:
        others = " and ".join(name for name in parts if name != ENCODER)
        raise ConfigError(
            f"adapt.method decoder_only: a {kind} model has no decoder; freeze_encoder trains its {others} alone"
        )
    names = [name for name, _ in network.named_parameters() if any(is_below(name, module) for module in modules)]
    chosen = [name for name in names if not CROSS_ATTENTION.search(name)]
    if len(chosen) == len(names):
        raise ConfigError(
            f"adapt.method decoder_only: no cross-attention is found in the decoder of {kind}; "
            "use freeze_encoder, which trains the complete decoder"
        )
    return chosen


def _last_layers(network: Any, parts: Parts, n: int) -> list[str]:
    # The first module of a part has the layers.
    sides = [module for name in (ENCODER, DECODER, network_parts.LANGUAGE_MODEL) for module in parts.get(name, ())[:1]]
    found = [_layers(network, side) for side in sides]
    if too_short := [f"{name} has {length}" for name, length in found if length < n]:
        raise ConfigError(f"adapt.n is {n}, but {' and '.join(too_short)} layers: lower it")
    return [f"{name}.{index}" for name, length in found for index in range(length - n, length)]


def _layers(network: Any, side: str) -> tuple[str, int]:
    found = [(name, module) for name, module in stacks(network) if is_below(name, side)]
    if not found:
        raise ConfigError(f"adapt.method last_n_layers: no list of layers is found in {side}; use another method")
    name, module = max(found, key=lambda stack: sum(weight.numel() for weight in stack[1].parameters()))
    return name, len(module)


def stacks(network: Any) -> Iterator[tuple[str, torch.nn.ModuleList]]:
    """Yields names and lists of the layers of encoders and decoders."""
    for name, module in network.named_modules():
        steps = name.split(".")
        # Lists of modules within layers are not lists of layers.
        if isinstance(module, torch.nn.ModuleList) and steps[-1] in _LAYERS and not any(map(str.isdigit, steps)):
            yield name, module


def target_modules(network: Any, wanted: Sequence[str] | None) -> list[str]:
    """Returns suffixes of the names of linear layers that get an adapter; by default, all projections of attentions.

    Raises:
        ConfigError: A name matches no linear layer, or one whose adapter would have no effect or could not be merged.
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
                f"adapt.target_modules: no linear layer of {kind} has a name that ends with {name}: name some of "
                f"{_last_steps(layers)}"
            )
        if any(layer.rpartition(".")[2] in NOT_CALLED.get(kind, ()) for layer in matched):
            raise ConfigError(
                f"adapt.target_modules: {name}: the attention of {kind} never calls this layer, so that an adapter "
                f"there has no effect: use others, e.g. {', '.join(INSTEAD)}"
            )
        if shared := [layer for layer in matched if f"{layer}.weight" in (network._tied_weights_keys or {})]:
            raise ConfigError(
                f"adapt.target_modules: {name}: the weights of {shared[0]} are the embeddings' too, so that merging an "
                "adapter there would change both: leave it out"
            )
    return list(wanted)


def linear_layers(network: Any) -> Iterator[str]:
    """Returns the names of the network's linear layers."""
    return (name for name, module in network.named_modules() if isinstance(module, torch.nn.Linear))


def _ending(layers: Sequence[str], name: str) -> list[str]:
    return [layer for layer in layers if layer == name or layer.endswith(f".{name}")]


def _last_steps(layers: Sequence[str]) -> str:
    return ", ".join(sorted({layer.rpartition(".")[2] for layer in layers}))


def skeleton(config: PretrainedConfig, family: Family[Any]) -> Any:
    """Returns the network of a config whose weights have shapes but no values, which needs no memory or download."""
    with torch.device("meta"):
        return family.auto_class(config).from_config(config)


def describe_trained(part: AdaptPart, model: ModelPart, family: Family[Any]) -> str:
    """Returns a description of what a method trains of the config's model; raises as `trained_names`."""
    network = skeleton(family.model_config(model, None), family)
    if part.method == "lora":
        parts = [f"adapters next to {', '.join(target_modules(network, part.target_modules))}", *heads(network)]
        return f"{' and '.join(parts)} are trained"
    train_only(network, part)
    trained, weights = count(network)
    return f"{trained:,} of {weights:,} weights are trained"
