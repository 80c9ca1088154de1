"""A model of few weights in place of a large one: its own architecture, processor, vocabulary and limits."""

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, PretrainedConfig

from trainers.config.parts.model_part import ModelPart
from trainers.models.pretrained import from_pretrained, open_pretrained

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
# Files next to the weights: config, processor, generation config.
DESCRIPTION = ["*.json", "*.txt", "*.model", "*.jinja"]


def tiny_model(model: ModelPart, folder: Path, seed: int) -> tuple[ModelPart, str]:
    """Makes a model of few weights where the config's has many, in place of pretrained weights in a new folder.

    Gives the model part to go on with, and a line that says what it is.

    Raises:
        ConfigError: config or processor of the weights cannot be opened.
        StorageError: the Hub does not respond.
    """
    if model.init == "scratch":
        smaller = _smaller(model)
        return smaller, "as it is" if smaller == model else "new weights of small sizes"
    config = from_pretrained(model, AutoConfig)
    with torch.device("meta"):
        count = _count(_class_of(config)(config))
    if count < LARGE:
        return model, f"{count / 1e6:.1f} M weights, as they are"
    torch.manual_seed(seed)
    small = _class_of(config)(type(config).from_dict(_shrunk(config.to_dict())))
    small.save_pretrained(folder)
    for file in _description(model).iterdir():
        wanted = file.name != "config.json" and not file.name.endswith(".index.json")
        if wanted and any(file.match(pattern) for pattern in DESCRIPTION):
            shutil.copyfile(file, folder / file.name)
    made = f"{_count(small) / 1e6:.1f} M random weights stand in for the {count / 1e6:.0f} M of {model.name_or_path}"
    return model.model_copy(update={"name_or_path": str(folder), "revision": None}), made


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


def _description(model: ModelPart) -> Path:
    """The folder with the files next to the weights, downloaded where they are on the Hub."""
    name = str(model.name_or_path)
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    revision = model.revision
    return Path(open_pretrained(model, lambda: snapshot_download(name, revision=revision, allow_patterns=DESCRIPTION)))
