"""LoRA by peft: an adapter next to a network's weights, stored without them, and merged into them in the end."""

import shutil
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, set_seed

from trainers.config.parts.adapt_part import AdaptPart
from trainers.distributed.session import Session
from trainers.errors import DamagedError
from trainers.models.adaptation.base_weights import BaseWeightsReference
from trainers.models.adaptation.trained_weights import heads, target_modules
from trainers.models.families import family_of_folder
from trainers.run_folder.checkpoints import BASE, TRAINING_STATE

# peft's own names.
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Where a merged model keeps what it was merged from; in the model's own folder, transformers would load it once more.
ADAPTER = "adapter"


class Adapter:
    """Low-rank weights inside a network, which stays the object that it was."""

    def __init__(self, peft: PeftModel, base: BaseWeightsReference):
        self._peft, self._base = peft, base

    @classmethod
    def added(cls, network: Any, part: AdaptPart, seed: int, base: BaseWeightsReference) -> "Adapter":
        """Puts a new adapter into a network and freezes all else, but for an output layer of its own.

        What is trained is float32, whatever type the network's other weights have.

        Raises:
            ConfigError: `target_modules` does not fit the network.
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
                # Adapters of such a network peft makes float32 by itself.
                head = network.get_submodule(name).float()
                head.register_forward_pre_hook(lambda _, given: tuple(each.float() for each in given))
        set_seed(seed)
        peft = get_peft_model(network, config)
        config.base_model_name_or_path, config.revision = base.name_or_path, base.revision
        return cls(peft, base)

    @classmethod
    def opened(cls, folder: Path) -> "Adapter":
        """Opens a checkpoint: its adapter in the weights that it was trained on.

        Raises:
            ConfigError: these weights cannot be opened.
            DamagedError: they have changed, or the adapter has other weights than its config says.
        """
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
        save_file(self._weights(), folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        self._base.write(folder)

    def load(self, folder: Path) -> None:
        """Loads the adapter of a checkpoint; a DamagedError, if that has other weights than this one."""
        weights = load_file(folder / ADAPTER_WEIGHTS)
        if set(weights) != set(self._weights()):
            raise DamagedError(f"{folder / ADAPTER_WEIGHTS}: holds other weights than its config says; name another")
        set_peft_model_state_dict(self._peft, weights)

    def merged(self) -> Any:
        """The network with the adapter added to its weights; nothing of the adapter is left.

        They are added in float32 and rounded to the type of the base, so that the model is as large as the base is.
        """
        return self._peft.merge_and_unload()

    def _weights(self) -> dict[str, Any]:
        # Without "auto", which asks the Hub whether the vocabulary has grown.
        weights = get_peft_model_state_dict(self._peft, save_embedding_layers=False)
        return {name: weight.contiguous() for name, weight in weights.items()}


def holds_adapter(folder: Path) -> bool:
    """Whether a checkpoint is an adapter's, which holds no weights of the network."""
    return (folder / ADAPTER_CONFIG).is_file()


def merge_folder(folder: Path) -> Path:
    """A checkpoint as a folder that `from_pretrained` opens: itself, or for an adapter's one next to it.

    Raises:
        ConfigError: the weights that it was trained on cannot be opened.
        DamagedError: they have changed.
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
    """Where `merge_folder` writes an adapter's model."""
    return folder.with_name(f"{folder.name}-merged")


def merge_once_a_node(folder: Path, session: Session) -> Path:
    """The same for all ranks; the first of each node merges. Every rank calls it."""
    if not holds_adapter(folder):
        return folder
    with session.failing_together("merging the adapter into the weights"):
        if session.local_rank == 0:
            merge_folder(folder)
    return merged_name(folder)
