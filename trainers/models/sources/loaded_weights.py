"""Loads pretrained weights into a network, and refuses any that do not match, so that none is random by accident.

transformers initializes missing weights randomly, drops unknown ones, and only logs this.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.utils import logging

from trainers.config.parts.model_part import ModelPart
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError
from trainers.findings import named
from trainers.models.adaptation.trained_weights import CROSS_ATTENTION, heads
from trainers.models.family import Family
from trainers.models.pretrained import from_pretrained, open_named, reason_of
from trainers.models.seq2seq.seq2seq_family import SHARED_EMBEDDINGS
from trainers.models.sources.damaged_files import StoredTensor
from trainers.models.sources.model_files import DECODER, ENCODER, PICKLED_WEIGHTS, WEIGHTS, SourcePin, names_in
from trainers.models.sources.opened_model import OpenedModel
from trainers.models.sources.source_reader import SourceReader, tensors_in

_FIX = "copy the complete files of the weights again, or name others"
# The embedding of masked frames in SpecAugment, on which no hypothesis depends. Released wav2vec2 models lack it.
_MASK = "masked_spec_embed"
# Computed tensors that older versions of transformers saved, or that are in a saved state of the complete network.
_COMPUTED = ("position_ids", "embed_positions.weights")
# Types of weights, by safetensors' names.
_FLOATS = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64"}


def weights_from_pretrained(model: ModelPart, kind: Any, *, new_head: bool = False, **options: Any) -> Any:
    """Returns the network that a class of transformers makes of the config's pretrained weights.

    Loads safetensors, unless the config allows pickles. A CTC model's head may be missing, or of another size, if it is
    a `new_head`. Raises as `open_named`, and ConfigError if a tensor is missing, unexpected, of another shape, or not a
    weight.
    """
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    origin, folder = f"model.name_or_path: {model.name_or_path}", Path(str(model.name_or_path))
    tensors: Mapping[str, StoredTensor] = {}
    if folder.is_dir():
        found = tensors_in(folder, origin, allow_pickle=model.allow_pickle)
        tensors = found if found is not None else _pickled_tensors(folder, origin) or {}
    # With None, transformers loads any format.
    network, info = from_pretrained(model, kind, use_safetensors=None if model.allow_pickle else True, **options)
    _refuse_other_tensors(network, info, origin, tensors, new_head=new_head)
    for name, weight in network.named_parameters():
        if not torch.isfinite(weight).all():
            raise ConfigError(f"{origin}: {name} has values that are not finite numbers: {_FIX}")
        # A truncated download may have the length of the complete file.
        if weight.dim() > 1 and not weight.any():
            raise ConfigError(f"{origin}: {name} has only zeros: {_FIX}")
    return network


def refuse_other_weights(
    config: TrainConfig, model: ModelPart, family: Family[Any], opened: OpenedModel, *, scored: bool = False
) -> None:
    """Refuses pretrained weights that do not match the network of their config; raises as `weights_from_pretrained`.

    If they are `scored` only, no part of them is new. Reads only the headers of their files, wherever they are; of
    pickled files, only those on this node.
    """
    reader = SourceReader.of(config)
    for pin in opened.pins.values():
        if pin.has_weights:
            folder = reader.folder(pin, weights=False)
            part = model.model_copy(update={"name_or_path": str(folder), "revision": None})
            new_head = pin.field == WEIGHTS and not scored and family.makes_new_head(part)
            if (tensors := reader.tensors(pin)) is None:
                tensors = _pickled_tensors(folder, pin.name)
            if tensors is not None:
                _refuse_other_weights(part, family, pin, tensors, new_head=new_head)


def _refuse_other_weights(
    part: ModelPart,
    family: Family[Any],
    pin: SourcePin,
    tensors: Mapping[str, StoredTensor],
    *,
    new_head: bool,
) -> None:
    """Loads tensors without values into the network of their config with transformers, and refuses any mismatch."""
    config: Any = from_pretrained(part, AutoConfig)
    auto_class = {ENCODER: AutoModel, DECODER: AutoModelForCausalLM}.get(pin.field, family.auto_class(config))
    options: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True, "device_map": "meta"}
    if pin.field == DECODER:
        config.is_decoder = config.add_cross_attention = True
        options["key_mapping"] = SHARED_EMBEDDINGS

    def load() -> Any:
        with torch.device("meta"):
            made: Any = auto_class.from_config(config)
            state = {name: torch.empty(each.shape) for name, each in tensors.items()}
        return type(made).from_pretrained(None, config=config, state_dict=state, **options)

    with _quiet():
        network, info = open_named(f"model.{pin.field}", pin.text, load)
    if pin.field != WEIGHTS:
        # Of a source that is an encoder or a decoder, other parts are dropped; attention between the two is new.
        tensors = {name: each for name, each in tensors.items() if name not in info["unexpected_keys"]}
        new = [name for name in info["missing_keys"] if pin.field == DECODER and CROSS_ATTENTION.search(name)]
        info |= {"unexpected_keys": [], "missing_keys": [*set(info["missing_keys"]) - {*new}]}
    _refuse_other_tensors(network, info, pin.name, tensors, new_head=new_head)


@contextmanager
def _quiet() -> Iterator[None]:
    """Returns a context in which transformers shows neither progress bars nor the mismatches that are checked here."""
    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


def _refuse_other_tensors(
    network: Any, info: Mapping[str, Any], origin: str, tensors: Mapping[str, StoredTensor], *, new_head: bool
) -> None:
    """Raises ConfigError for the mismatches that transformers reports, except in a `new_head` or a dropped head.

    Also raises it for quantized weights among the `tensors` of the files, which transformers would not convert.
    """
    other_heads = new_head or type(network).__name__ not in (network.config.architectures or ())
    head = tuple(f"{name}." for name in heads(network)) if new_head else ()
    # Masks and positions are not weights. Names in files may lack the prefix of the network's base, or have one more.
    weights = [name for name, _ in network.named_parameters(remove_duplicate=False)]
    if coarse := [
        f"{name} ({each.dtype})"
        for name, each in tensors.items()
        if each.shape
        and each.dtype not in _FLOATS.values()
        and not name.startswith(head)
        and any(weight.endswith(name) or name.endswith(weight) for weight in weights)
    ]:
        raise ConfigError(
            f"{origin}: {named(sorted(coarse))} has integers, or floating-point numbers of fewer than 16 bits, but "
            f"weights have more: {_FIX}"
        )
    missing = [name for name in info["missing_keys"] if not name.startswith(head) and not name.endswith(_MASK)]
    wrong = [f"{name} {[*found]}, not {[*wanted]}" for name, found, wanted in info["mismatched_keys"]]
    wrong = [text for text in wrong if not text.startswith(head)]
    unknown = [name for name in info["unexpected_keys"] if not name.endswith((_MASK, *_COMPUTED))]
    unknown = [name for name in unknown if not (other_heads and _is_of_another_head(network, name))]
    problems = [
        f"{what} {named(sorted(names))}"
        for what, names in (("lack", missing), ("have, in another shape,", wrong), ("have, in addition,", unknown))
        if names
    ]
    if problems:
        raise ConfigError(
            f"{origin}: its weights are not those of the {type(network).__name__} that its config.json describes: they "
            f"{'; they '.join(problems)}: {_FIX}"
        )


def _is_of_another_head(network: Any, name: str) -> bool:
    """Returns True for a tensor outside a CTC model's base model, whose weights may or may not have its prefix."""
    if network.config.is_encoder_decoder:
        return False
    base = network.base_model_prefix
    inner = {child for child, _ in getattr(network, base).named_children()}
    return name.partition(".")[0] not in {base, *inner}


def _pickled_tensors(folder: Path, origin: str) -> dict[str, StoredTensor] | None:
    """Returns the tensors of pickles in a folder, by name; None if the files are not on this node."""
    found: dict[str, StoredTensor] = {}
    for name in names_in(folder):
        if not any(fnmatch(name, each) for each in PICKLED_WEIGHTS):
            continue
        try:
            content = torch.load(folder / name, map_location="meta", weights_only=True)
        # The exception that torch raises depends on where a file is truncated.
        except Exception as error:
            raise ConfigError(f"{origin}: {name}: {reason_of(error)}: {_FIX}") from error
        if not isinstance(content, dict) or not all(isinstance(each, torch.Tensor) for each in content.values()):
            raise ConfigError(f"{origin}: {name} holds no tensors by name: {_FIX}")
        for key, each in content.items():
            found[key] = StoredTensor(tuple(each.shape), _FLOATS.get(each.dtype, str(each.dtype)))
    return found or None
