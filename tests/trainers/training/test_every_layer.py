"""With sharded weights every rank runs every layer, whatever its model would skip at random."""

from typing import Any

import pytest
import torch
from transformers import (
    HubertConfig,
    HubertForCTC,
    Speech2TextConfig,
    Speech2TextForConditionalGeneration,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from trainers.training.sharding import run_every_layer

SIZES: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "vocab_size": 20,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "encoder_layerdrop": 0.9,
    "decoder_layerdrop": 0.8,
}
RAW: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "conv_dim": [8] * 7,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 20,
    "mask_time_prob": 0.0,
    "layerdrop": 0.9,
}


def layers_run(network: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> list[int]:
    """How many layers each of five training passes runs."""
    counts: list[int] = []

    def count(*_: object) -> None:
        counts[-1] += 1

    for module in network.modules():
        if type(module).__name__.endswith(("EncoderLayer", "DecoderLayer", "EncoderLayerStableLayerNorm")):
            module.register_forward_hook(count)
    torch.manual_seed(0)
    network.train()
    for _ in range(5):
        counts.append(0)
        network(**inputs)
    return counts


def decoded(network: Any, frames: int, bins: int) -> dict[str, torch.Tensor]:
    shape = (1, frames, bins) if isinstance(network, Speech2TextForConditionalGeneration) else (1, bins, frames)
    return {"input_features": torch.zeros(shape), "decoder_input_ids": torch.ones(1, 4, dtype=torch.int64)}


@pytest.mark.parametrize("kind", ["whisper", "speech_to_text", "wav2vec2", "hubert"])
def test_every_layer_is_run(kind: str) -> None:
    network: Any
    if kind == "whisper":
        plain = WhisperConfig(**SIZES, max_source_positions=20, max_target_positions=8, num_mel_bins=8)
        network = WhisperForConditionalGeneration(plain)
        inputs = decoded(network, 40, 8)
    elif kind == "speech_to_text":
        network = Speech2TextForConditionalGeneration(Speech2TextConfig(**SIZES, input_feat_per_channel=8))
        inputs = decoded(network, 40, 8)
    else:
        network = Wav2Vec2ForCTC(Wav2Vec2Config(**RAW)) if kind == "wav2vec2" else HubertForCTC(HubertConfig(**RAW))
        inputs = {"input_values": torch.zeros(1, 4000)}
    assert min(layers_run(network, inputs)) < 6, "some are skipped"
    (note,) = run_every_layer(network)
    assert "layerdrop was 0.9" in note
    assert set(layers_run(network, inputs)) == {6}
    assert run_every_layer(network) == ()
