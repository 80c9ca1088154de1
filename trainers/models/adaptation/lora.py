"""Adds a LoRA adapter to a network with peft, stores it without the network's weights, and merges it into them."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, set_seed

from trainers.config.parts.training_part import AdaptPart
from trainers.distributed.session import Session
from trainers.errors import DamagedError
from trainers.models.adaptation.base_weights import BaseWeightsReference
from trainers.models.adaptation.trained_weights import heads, target_modules
from trainers.models.families import family_of_folder
from trainers.run_folder.checkpoints import BASE, TRAINING_STATE

# peft's file names.
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Subfolder of the adapter in a merged model; in the model's own folder, transformers would apply it again.
ADAPTER = "adapter"
# In peft's names of low-rank weights; the network's output is linear in the second kind.
_LORA, _LORA_OUTPUT = "lora_", "lora_B"
_FORMAT = {"format": "pt"}


class Adapter:
    """Low-rank weights inside a network, which remains the same object."""

    def __init__(self, peft: PeftModel, base: BaseWeightsReference):
        self._peft, self._base = peft, base

    @classmethod
    def added(cls, network: Any, part: AdaptPart, seed: int, base: BaseWeightsReference) -> "Adapter":
        """Adds a new adapter to a network and freezes everything else, except for a separate output layer.

        Trained weights are float32, whatever the type of the network's other weights. Raises ConfigError if
        `target_modules` does not fit the network.
        """
        config = LoraConfig(
            r=part.r,
            lora_alpha=part.alpha,
            lora_dropout=part.dropout,
            target_modules=target_modules(network, part.target_modules),
            modules_to_save=list(heads(network)) or None,
        )
        if network.dtype != torch.float32:
            for name in heads(network):
                # peft makes the adapters of such a network float32 by itself.
                head = network.get_submodule(name).float()
                head.register_forward_pre_hook(lambda _, given: tuple(each.float() for each in given))
        set_seed(seed)
        peft = get_peft_model(network, config)
        config.base_model_name_or_path, config.revision = base.name_or_path, base.revision
        return cls(peft, base)

    @classmethod
    def opened(cls, folder: Path) -> "Adapter":
        """Opens a checkpoint's base weights with its adapter; raises as `BaseWeightsReference.open` and `load`."""
        base = BaseWeightsReference.of_checkpoint(folder)
        config = AutoConfig.from_pretrained(folder)
        network = base.open(config, family_of_folder(folder).auto_class(config), folder)
        adapter = cls(get_peft_model(network, LoraConfig.from_pretrained(str(folder))), base)
        adapter.load(folder)
        return adapter

    def save(self, folder: Path) -> None:
        network: Any = self._peft.get_base_model()
        network.config.architectures = [type(network).__name__]
        network.config.save_pretrained(folder)
        if network.can_generate():
            network.generation_config.save_pretrained(folder)
        self._peft.peft_config["default"].save_pretrained(str(folder))
        save_file(self._weights(), folder / ADAPTER_WEIGHTS, _FORMAT)
        self._base.write(folder)

    def load(self, folder: Path) -> None:
        """Loads the adapter of a checkpoint; raises DamagedError if the names of its weights differ."""
        weights = load_file(folder / ADAPTER_WEIGHTS)
        if set(weights) != set(self._weights()):
            raise DamagedError(f"{folder / ADAPTER_WEIGHTS}: has other weights than its config says; use another")
        set_peft_model_state_dict(self._peft, weights)

    def merged(self) -> Any:
        """Returns the network with the adapter merged into its weights, in float32, rounded to the type of the base."""
        return self._peft.merge_and_unload()

    def _weights(self) -> dict[str, Any]:
        # Not "auto", which requests the vocabulary's size from the Hub.
        weights = get_peft_model_state_dict(self._peft, save_embedding_layers=False)
        return {name: weight.contiguous() for name, weight in weights.items()}


def scale_adapter(folder: Path, target: Path, share: float, merged: Mapping[str, torch.Tensor]) -> None:
    """Writes the adapter of a merged model for a model between its base and itself.

    Args:
        folder: The adapter's folder in the merged model, see `merge_folder`.
        target: The folder to write, without weights yet.
        share: Share of the adapter in the weights: 1 is the adapter itself.
        merged: The weights of the model between them, by name; those that are trained in full are taken from it.
    """
    weights = load_file(folder / ADAPTER_WEIGHTS)
    scaled = {
        name: (weight * share if _LORA_OUTPUT in name else weight) if _LORA in name else merged[_name_in_model(name)]
        for name, weight in weights.items()
    }
    save_file({name: weight.contiguous() for name, weight in scaled.items()}, target / ADAPTER_WEIGHTS, _FORMAT)


def _name_in_model(name: str) -> str:
    return name.removeprefix("base_model.model.")


def holds_adapter(folder: Path) -> bool:
    """Returns True if a checkpoint is an adapter's, without the weights of the network."""
    return (folder / ADAPTER_CONFIG).is_file()


def merge_folder(folder: Path) -> Path:
    """Returns a folder that `from_pretrained` opens: the checkpoint, or for an adapter's, a merged model next to it.

    Raises as `Adapter.opened`.
    """
    if not holds_adapter(folder):
        return folder
    target = merged_name(folder)
    Adapter.opened(folder).merged().save_pretrained(target)
    (target / ADAPTER).mkdir()
    for file in folder.iterdir():
        if file.name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS, BASE):
            shutil.copy(file, target / ADAPTER)
        elif file.name not in TRAINING_STATE:
            shutil.copy(file, target)
    return target


def merged_name(folder: Path) -> Path:
    """Returns the path where `merge_folder` writes an adapter's model."""
    return folder.with_name(f"{folder.name}-merged")


def merge_once_a_node(folder: Path, session: Session) -> Path:
    """Runs `merge_folder` on the first rank of each node, and returns its result on all. Every rank must call it."""
    if not holds_adapter(folder):
        return folder
    with session.failing_together("merging the adapter into the weights"):
        if session.local_rank == 0:
            merge_folder(folder)
    return merged_name(folder)
