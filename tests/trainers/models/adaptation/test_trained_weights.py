from typing import Any

import pytest

from tests.trainers.models.adaptation.networks import CONFIGS, CTC, SEQ2SEQ, network
from trainers.config.parts.training_part import AdaptPart
from trainers.errors import ConfigError
from trainers.models.adaptation.trained_weights import count, heads, train_only, trained_names


def trained(kind: str, **fields: Any) -> tuple[set[str], set[str]]:
    """Names of what a method trains of a network, and of what it does not."""
    model = network(kind)
    names = set(trained_names(model, AdaptPart(**fields)))
    return names, {name for name, _ in model.named_parameters()} - names


@pytest.mark.parametrize("kind", CONFIGS)
def test_full_changes_nothing(kind: str) -> None:
    model, untouched = network(kind), network(kind)
    train_only(model, AdaptPart())
    flags = [[(name, weight.requires_grad) for name, weight in each.named_parameters()] for each in (model, untouched)]
    assert flags[0] == flags[1]


def test_what_a_model_never_trains_stays_frozen() -> None:
    model = network("whisper")
    train_only(model, AdaptPart(method="last_n_layers", n=2))
    train_only(model, AdaptPart())
    assert not model.model.encoder.embed_positions.weight.requires_grad


@pytest.mark.parametrize("kind", SEQ2SEQ)
class TestWithADecoder:
    def test_freeze_encoder_trains_the_decoder(self, kind: str) -> None:
        names, others = trained(kind, method="freeze_encoder")
        assert names and all(name.startswith("model.decoder.") for name in names)
        assert others and all(name.startswith("model.encoder.") for name in others)
        assert any("encoder_attn" in name for name in names)

    def test_decoder_only_leaves_cross_attention_out(self, kind: str) -> None:
        names, others = trained(kind, method="decoder_only")
        whole, _ = trained(kind, method="freeze_encoder")
        assert names < whole and all("encoder_attn" in name for name in whole - names)
        assert not any("encoder_attn" in name for name in names)
        assert "model.decoder.embed_tokens.weight" in names
        assert {"self_attn", "fc1"} <= {step for name in names for step in name.split(".")}
        assert others

    def test_last_n_layers_trains_those_of_both_sides(self, kind: str) -> None:
        names, _ = trained(kind, method="last_n_layers", n=2)
        layers = {".".join(name.split(".")[:4]) for name in names}
        assert layers == {f"model.{side}" for side in ("encoder.layers.0", "encoder.layers.1")} | {
            f"model.{side}" for side in ("decoder.layers.1", "decoder.layers.2")
        }

    def test_more_layers_than_there_are_is_refused(self, kind: str) -> None:
        with pytest.raises(ConfigError, match=r"adapt\.n is 3, but model\.encoder\.layers has 2 layers: lower it"):
            trained(kind, method="last_n_layers", n=3)


@pytest.mark.parametrize("kind", CTC)
class TestCTC:
    def test_freeze_encoder_trains_the_head(self, kind: str) -> None:
        assert trained(kind, method="freeze_encoder")[0] == {"lm_head.weight", "lm_head.bias"}

    def test_decoder_only_is_refused(self, kind: str) -> None:
        with pytest.raises(ConfigError, match=rf"a {kind} model has no decoder; freeze_encoder trains its head alone"):
            trained(kind, method="decoder_only")

    def test_last_n_layers_trains_the_head_too(self, kind: str) -> None:
        names, _ = trained(kind, method="last_n_layers", n=1)
        body = network(kind).base_model_prefix
        assert {name for name in names if not name.startswith(f"{body}.encoder.layers.1.")} == {
            "lm_head.weight",
            "lm_head.bias",
        }

    def test_the_head_is_what_is_behind_the_base_model(self, kind: str) -> None:
        assert heads(network(kind)) == ["lm_head"]


def test_a_decoder_of_another_kind_is_told_apart_by_its_own_names() -> None:
    model = network("whisper")
    for layer in model.model.decoder.layers:
        layer.unheard_of, layer.unheard_of_norm = layer.encoder_attn, layer.encoder_attn_layer_norm
        del layer.encoder_attn, layer.encoder_attn_layer_norm
    with pytest.raises(ConfigError, match="no cross-attention is found in the decoder of whisper; use freeze_encoder"):
        trained_names(model, AdaptPart(method="decoder_only"))


def test_weights_are_counted_once() -> None:
    model = network("whisper")
    assert model.proj_out.weight is model.model.decoder.embed_tokens.weight
    train_only(model, AdaptPart(method="freeze_encoder"))
    number, whole = count(model)
    assert number == sum(weight.numel() for weight in model.model.decoder.parameters())
    assert whole == number + sum(weight.numel() for weight in model.model.encoder.parameters())
