"""A model of few weights in place of a large one: its own architecture, processor, vocabulary and limits."""

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, PretrainedConfig

from trainers.config.parts.model_part import ModelPart
from trainers.models.pretrained import from_pretrained
from trainers.models.sources.model_files import DESCRIPTION
from trainers.models.sources.source_pin import FIELDS

# A model of fewer weights stands in for itself.
LARGE = 5_000_000
WIDTH, FEED_FORWARD, LAYERS, HEADS = 32, 64, 2, 2
# The names that architectures have for a size, and the most that a tiny model has of it.
SIZES = {
    **dict.fromkeys(("d_model", "hidden_size", "encoder_hidden_size", "output_hidden_size", "conv_dim"), WIDTH),
    **dict.fromkeys(("classifier_proj_size", "adapter_attn_dim", "head_dim"), WIDTH // HEADS),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim"), FEED_FORWARD),
    **dict.fromkeys(("num_hidden_layers", "encoder_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("encoder_num_hidden_layers", "decoder_num_hidden_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("encoder_num_attention_heads", "decoder_num_attention_heads"), HEADS),
    **dict.fromkeys(("encoder_num_key_value_heads", "decoder_num_key_value_heads", "num_key_value_heads"), HEADS),
}
NEW_SIZES = {"d_model": 128, "encoder_layers": 4, "decoder_layers": 2, "ffn_dim": 512, "feature_encoder_dim": 64}


def tiny_model(model: ModelPart, folder: Path, seed: int, described: ModelPart | None = None) -> tuple[ModelPart, str]:
    """Makes a model of few weights where the config's has many, in place of pretrained weights in a new folder.

    `described` names the folder with what describes the model. None: `model` does. Gives the model part to go on with,
    and a line that says what it is.

    Raises:
        ConfigError: config or processor of the weights cannot be opened.
        StorageError: the Hub does not respond.
    """
    if model.init == "scratch":
        smaller = _smaller(model)
        return smaller, "as it is" if smaller == model else "new weights of small sizes"
    opened = described or model
    config = from_pretrained(opened, AutoConfig)
    with torch.device("meta"):
        count = _count(_class_of(config)(config))
    if count < LARGE:
        return model, f"{count / 1e6:.1f} M weights, as they are"
    torch.manual_seed(seed)
    small = _class_of(config)(type(config).from_dict(_shrunk(config.to_dict())))
    small.save_pretrained(folder)
    for file in Path(str(opened.name_or_path)).iterdir():
        wanted = file.name != "config.json" and not file.name.endswith(".index.json")
        if wanted and any(file.match(pattern) for pattern in DESCRIPTION):
            shutil.copyfile(file, folder / file.name)
    origin = model.name_or_path or "the model"
    made = f"{_count(small) / 1e6:.1f} M random weights stand in for the {count / 1e6:.0f} M of {origin}"
    sources = {name: None for name in (*FIELDS, "revision") if name in type(model).model_fields}
    return model.model_copy(update={**sources, "name_or_path": str(folder)}), made


def _smaller(model: ModelPart) -> ModelPart:
    sizes = {name: getattr(model, name, None) for name in NEW_SIZES}
    changes: dict[str, Any] = {name: min(size, NEW_SIZES[name]) for name, size in sizes.items() if size is not None}
    if changes.get("d_model", 0) % getattr(model, "attention_heads", 1):
        changes["attention_heads"] = HEADS
    return model.model_copy(update=changes)


def _shrunk(value: Any, name: str = "") -> Any:
    """The content of a config.json with small sizes; of its parts too."""
    if isinstance(value, dict):
        return {key: _shrunk(each, key) for key, each in value.items()}
    if name not in SIZES:
        return value
    if isinstance(value, list | tuple):
        return [min(size, SIZES[name]) for size in value]
    return min(value, SIZES[name]) if isinstance(value, int) else value


def _class_of(config: PretrainedConfig) -> Any:
    """What the weights were saved from, so that as much of them is missing as of the real ones."""
    names = config.architectures or []
    return getattr(transformers, names[0], AutoModel.from_config) if names else AutoModel.from_config


def _count(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())
