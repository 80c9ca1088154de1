from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCTC,
    BertConfig,
    ParakeetCTCConfig,
    ParakeetEncoderConfig,
    SpeechEncoderDecoderConfig,
    SpeechEncoderDecoderModel,
)

from tests.trainers.models.adaptation.networks import CONFIGS, network
from trainers.config.parts.training_part import AdaptPart
from trainers.errors import ConfigError
from trainers.models.adaptation.network_parts import check_parts
from trainers.models.adaptation.trained_weights import parts_of, trained_names
from trainers.models.families import FAMILIES


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_family_names_the_part_of_each_weight(kind: str) -> None:
    expected = {"encoder", "head"} if "wav" in kind else {"encoder", "decoder"}
    assert set(parts_of(network(kind))) == expected


def test_what_joins_an_encoder_to_a_wider_decoder_is_the_projector() -> None:
    decoder = BertConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=20,
        is_decoder=True,
        add_cross_attention=True,
    )
    with torch.device("meta"):
        model = SpeechEncoderDecoderModel(
            SpeechEncoderDecoderConfig.from_encoder_decoder_configs(CONFIGS["wav2vec2"], decoder)
        )
    assert {name: list(modules) for name, modules in parts_of(model).items()} == {
        "encoder": ["encoder"],
        "decoder": ["decoder"],
        "projector": ["enc_to_dec_proj"],
    }
    trained = trained_names(model, AdaptPart(method="freeze_encoder"))
    assert {name.partition(".")[0] for name in trained} == {"decoder", "enc_to_dec_proj"}


def test_a_network_of_other_modules_is_refused() -> None:
    encoder = ParakeetEncoderConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    with torch.device("meta"):
        model: Any = AutoModelForCTC.from_config(ParakeetCTCConfig(vocab_size=10, encoder_config=encoder.to_dict()))
    with pytest.raises(ConfigError, match=r"ParakeetForCTC \(parakeet_ctc\): its family names the module \w+, which"):
        check_parts(model, FAMILIES["ctc"].parts(model))


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        (
            {"encoder": ["model.encoder"]},
            "must assign model.decoder.embed_tokens.weight to one part, but it is in none",
        ),
        (
            {"encoder": ["model.encoder"], "decoder": ["model.decoder", "model.encoder.layer_norm"]},
            "to one part, but it is in model.encoder and in model.encoder.layer_norm",
        ),
        ({"encoder": ["model"], "mouth": ["proj_out"]}, "names the part mouth, which is none of encoder"),
        ({"encoder": ["model"], "head": ["proj_out"]}, "names the module proj_out, which has no weights in it"),
    ],
)
def test_parts_that_do_not_divide_up_the_weights_are_refused(parts: dict[str, list[str]], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_parts(network("whisper"), parts)
    assert problem in str(refused.value)
    assert str(refused.value).startswith("the network WhisperForConditionalGeneration (whisper): its family")


def test_a_method_that_would_train_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(FAMILIES["whisper"]), "parts", lambda family, model: {"encoder": ["model"]})
    with pytest.raises(ConfigError, match=r"adapt\.method freeze_encoder would train none of the weights of whisper"):
        trained_names(network("whisper"), AdaptPart(method="freeze_encoder"))
