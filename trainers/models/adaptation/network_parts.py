"""Names the parts of a network: its family assigns modules to parts, and every weight is in exactly one part."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainers.errors import ConfigError

ENCODER, DECODER, LANGUAGE_MODEL, HEAD = "encoder", "decoder", "language_model", "head"
PREDICTION_NETWORK, JOINT, PROJECTOR = "prediction_network", "joint", "projector"
NAMES = (ENCODER, PROJECTOR, DECODER, LANGUAGE_MODEL, PREDICTION_NETWORK, JOINT, HEAD)

# Names of the modules of each part.
Parts = Mapping[str, Sequence[str]]


def check_parts(network: Any, parts: Parts) -> None:
    """Raises ConfigError if parts are not a partition of a network's weights."""
    kind = f"the network {type(network).__name__} ({network.config.model_type})"
    if unknown := [name for name in parts if name not in NAMES]:
        raise ConfigError(f"{kind}: its family names the part {unknown[0]}, which is none of {', '.join(NAMES)}")
    weights = [name for name, _ in network.named_parameters()]
    modules = [module for names in parts.values() for module in names]
    if empty := [module for module in modules if not any(is_below(name, module) for name in weights)]:
        raise ConfigError(f"{kind}: its family names the module {empty[0]}, which has no weights in it")
    for name in weights:
        found = [module for module in modules if is_below(name, module)]
        if len(found) != 1:
            of = f"in {' and in '.join(found)}" if found else "in none"
            raise ConfigError(f"{kind}: its family must assign {name} to one part, but it is {of}")


def encoder_decoder_parts(network: Any) -> dict[str, list[str]]:
    """Returns the parts of a network with `get_encoder()` and `get_decoder()`; the decoder has the output layer."""
    encoder, decoder = (_name_of(network, side) for side in (network.get_encoder(), network.get_decoder()))
    layer = network.get_output_embeddings()
    output = _name_of(network, layer) if layer is not None else decoder
    # An output layer that shares the embeddings' weights has no weights of its own.
    has_own = any(is_below(name, output) and not is_below(name, decoder) for name, _ in network.named_parameters())
    return {ENCODER: [encoder], DECODER: [decoder, output] if has_own else [decoder]}


def is_below(name: str, module: str) -> bool:
    """Returns True if a weight or a module is in a module, or is that module."""
    return name == module or name.startswith(f"{module}.")


def _name_of(network: Any, wanted: Any) -> str:
    return next(str(name) for name, module in network.named_modules() if module is wanted)
