from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCTC,
    AutoModelForSpeechSeq2Seq,
    BartConfig,
    MoonshineConfig,
    PretrainedConfig,
    Speech2TextConfig,
    SpeechEncoderDecoderConfig,
    Wav2Vec2Config,
)

from tests.trainers.synthetic import config
from trainers.config.parts.model_part import ModelPart
from trainers.models.families import FAMILIES
from trainers.pipeline.trials.debug_run import LARGE, tiny_model


def published(folder: Path, model_type: str) -> ModelPart:
    """The description of a model of the sizes that its kind has by default, without its weights."""
    described = AutoConfig.for_model(model_type, vocab_size=40)
    described.save_pretrained(folder)
    (folder / "vocab.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text("{}")
    return config({"model": {"name_or_path": str(folder), "language": "English"}}).model


@pytest.mark.parametrize("model_type", FAMILIES["ctc"].model_types)
def test_a_stand_in_is_a_small_model_of_the_same_kind(model_type: str, tmp_path: Path) -> None:
    part, line = tiny_model(published(tmp_path / "large", model_type), tmp_path / "small", seed=1)
    assert part.name_or_path == str(tmp_path / "small")
    assert "random weights stand in" in line
    model = AutoModelForCTC.from_pretrained(tmp_path / "small")
    assert (model.config.model_type, model.config.vocab_size) == (model_type, 40)
    assert sum(weight.numel() for weight in model.parameters()) < LARGE
    with torch.no_grad():
        bert = model_type == "wav2vec2-bert"
        inputs = {"input_features": torch.zeros(1, 50, 160)} if bert else {"input_values": torch.zeros(1, 16_000)}
        assert model(**inputs).logits.shape[-1] == 40
    assert sorted(path.name for path in (tmp_path / "small").iterdir()) == [
        "config.json",
        "model.safetensors",
        "vocab.json",
    ]


@pytest.mark.parametrize(
    ("described", "inputs"),
    [
        (MoonshineConfig(architectures=["MoonshineForConditionalGeneration"]), "input_values"),
        (Speech2TextConfig(architectures=["Speech2TextForConditionalGeneration"]), "input_features"),
        (
            SpeechEncoderDecoderConfig.from_encoder_decoder_configs(
                Wav2Vec2Config(), BartConfig(), architectures=["SpeechEncoderDecoderModel"]
            ),
            "input_values",
        ),
    ],
    ids=lambda item: getattr(item, "model_type", ""),
)
def test_models_with_a_decoder_have_stand_ins_too(described: PretrainedConfig, inputs: str, tmp_path: Path) -> None:
    described.save_pretrained(tmp_path / "large")
    model = config({"model": {"name_or_path": str(tmp_path / "large"), "language": "English"}}).model
    tiny_model(model, tmp_path / "small", seed=1)
    small = AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path / "small")
    assert sum(weight.numel() for weight in small.parameters()) < LARGE
    speech = torch.zeros(1, 100, 80) if inputs == "input_features" else torch.zeros(1, 16_000)
    with torch.no_grad():
        assert small(**{inputs: speech}, decoder_input_ids=torch.tensor([[1, 2]])).logits.shape[:2] == (1, 2)


def test_small_weights_stand_for_themselves(tmp_path: Path) -> None:
    published(tmp_path, "wav2vec2")
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "conv_dim": [32] * 7,
    }
    AutoConfig.for_model("wav2vec2", **sizes).save_pretrained(tmp_path)
    model = config({"model": {"name_or_path": str(tmp_path), "language": "English"}}).model
    assert tiny_model(model, tmp_path / "small", seed=1)[0] == model
    assert not (tmp_path / "small").exists()


def test_sizes_of_a_new_model_are_small_and_fit_each_other(tmp_path: Path) -> None:
    model: Any = config({"model.d_model": 600, "model.attention_heads": 12, "model.encoder_layers": 24}).model
    small: Any = tiny_model(model, tmp_path, seed=1)[0]
    assert (small.d_model, small.encoder_layers, small.decoder_layers) == (128, 4, model.decoder_layers)
    assert small.d_model % small.attention_heads == 0
    again, line = tiny_model(small, tmp_path, seed=1)
    assert (again, line) == (small, "as it is")
