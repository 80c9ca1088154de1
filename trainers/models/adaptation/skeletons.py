"""A network without weights, to see early what would be trained."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig

from trainers.config.parts.adapt_part import AdaptPart
from trainers.config.parts.model_part import ModelPart
from trainers.models.adaptation.targets import target_modules
from trainers.models.adaptation.trained_weights import count, heads, train_only
from trainers.models.family import Family
from trainers.models.pretrained import open_pretrained


def skeleton(config: PretrainedConfig, family: Family[Any]) -> Any:
    """The network of a config with weights that have shapes and no content: it takes no memory and no download."""
    with torch.device("meta"):
        return family.auto_class().from_config(config)


def describe_trained(part: AdaptPart, model: ModelPart, family: Family[Any]) -> str:
    """What a method trains of the config's model, for a person.

    Raises:
        ConfigError: the model has no such weights, or cannot be opened.
        StorageError: the Hub does not respond.
    """
    network = skeleton(_read_config(model, family), family)
    if part.method == "lora":
        parts = [f"adapters beside {', '.join(target_modules(network, part.target_modules))}", *heads(network)]
        return f"{' and '.join(parts)} are trained"
    train_only(network, part)
    trained, weights = count(network)
    return f"{trained:,} of {weights:,} weights are trained"


def _read_config(model: ModelPart, family: Family[Any]) -> Any:
    if model.init == "pretrained":
        name, revision = str(model.name_or_path), model.revision or "main"
        return open_pretrained(model, lambda: AutoConfig.from_pretrained(name, revision=revision))
    with tempfile.TemporaryDirectory(prefix="rayscribe-") as folder:
        # Of any text: sizes are asked for.
        family.write_description(Path(folder), ["a"], model)
        return AutoConfig.from_pretrained(folder)
