"""The network of a GRU model, and the model as it is trained and scored."""

from pathlib import Path
from typing import Any

import torch
from rayscribe.trainers.models.ctc.ctc_recognizer import CtcRecognizer
from rayscribe.trainers.models.label_codec import LabelCodec
from rayscribe.trainers.models.pretrained import from_pretrained, network_options
from transformers import AutoModelForCTC, PreTrainedModel, set_seed
from transformers.modeling_outputs import CausalLMOutput

from speech_extras.gru_config import GruConfig
from speech_extras.gru_part import GruPart


class GruForCTC(PreTrainedModel):
    """GRU layers over log-mel frames, and an output layer."""

    config_class = GruConfig
    main_input_name = "input_features"

    def __init__(self, config: GruConfig):
        super().__init__(config)
        self.gru = torch.nn.GRU(config.feature_size, config.hidden_size, config.num_hidden_layers, batch_first=True)
        self.head = torch.nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_features: torch.Tensor, attention_mask: torch.Tensor | None = None) -> CausalLMOutput:
        """Logits (B, T, vocab_size) of features (B, T, feature_size); padding stands behind, and is never read."""
        return CausalLMOutput(logits=self.head(self.gru(input_features)[0]))

    def _get_feat_extract_output_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        return lengths


AutoModelForCTC.register(GruConfig, GruForCTC)


class GruRecognizer(CtcRecognizer):
    """Features, loss and best path are those of every CTC model."""

    @classmethod
    def load(
        cls,
        codec: LabelCodec,
        model: GruPart,
        processor: Any,
        description: Path | None,
        seed: int,
        weights: Path | None,
    ) -> "GruRecognizer":
        """New weights by the seed, those of a checkpoint, or the config's pretrained ones."""
        set_seed(seed)
        if description is None:
            network = from_pretrained(model, GruForCTC, **network_options(model))
        elif weights is None:
            network = GruForCTC(GruConfig.from_pretrained(description))
        else:
            network = GruForCTC.from_pretrained(weights, dtype=model.dtype)
        return cls(network, processor, codec)
