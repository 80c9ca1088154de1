"""The classes that open a network of any family, and a network without weights to look at."""

from typing import Any

import torch
from transformers import AutoModelForCTC, AutoModelForSpeechSeq2Seq, PretrainedConfig


def auto_class(config: PretrainedConfig) -> Any:
    """The class whose `from_pretrained` and `from_config` make the network of a config."""
    return AutoModelForSpeechSeq2Seq if config.is_encoder_decoder else AutoModelForCTC


def skeleton(config: PretrainedConfig) -> Any:
    """The network of a config with weights that have shapes and no content: it takes no memory and no download."""
    with torch.device("meta"):
        return auto_class(config).from_config(config)
