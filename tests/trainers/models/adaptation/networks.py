"""Networks of several families, of two layers, without content."""

from typing import Any

import torch
from transformers import (
    MoonshineConfig,
    PretrainedConfig,
    Speech2TextConfig,
    Wav2Vec2BertConfig,
    Wav2Vec2Config,
    WavLMConfig,
    WhisperConfig,
)

from trainers.models.adaptation.trained_weights import skeleton
from trainers.models.families import family_of_type

Fields = dict[str, Any]
_SIDES: Fields = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "vocab_size": 50, "pad_token_id": 1}
_HEADS: dict[str, Any] = {
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
_CTC: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 30,
}
_CONVOLUTIONS: Fields = {"conv_dim": (16,) * 7, "num_conv_pos_embedding_groups": 2}
CONFIGS: dict[str, PretrainedConfig] = {
    "whisper": WhisperConfig(**_SIDES, **_HEADS),
    "speech_to_text": Speech2TextConfig(**_SIDES, **_HEADS),
    "moonshine": MoonshineConfig(
        hidden_size=16,
        intermediate_size=32,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=3,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
        vocab_size=50,
    ),
    "wav2vec2": Wav2Vec2Config(**_CTC, **_CONVOLUTIONS),
    "wavlm": WavLMConfig(**_CTC, **_CONVOLUTIONS),
    "wav2vec2-bert": Wav2Vec2BertConfig(**_CTC),
}
SEQ2SEQ = ("whisper", "speech_to_text", "moonshine")
CTC = ("wav2vec2", "wavlm", "wav2vec2-bert")


def network(kind: str) -> Any:
    """A network of this `model_type`."""
    return skeleton(CONFIGS[kind], family_of_type(kind))


def sizes(model: Any) -> dict[str, torch.Size]:
    """Shape of each weight."""
    return {name: weight.shape for name, weight in model.named_parameters()}
