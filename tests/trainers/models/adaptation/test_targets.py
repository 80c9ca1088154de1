import pytest

from tests.trainers.models.adaptation.networks import CONFIGS, network
from trainers.errors import ConfigError
from trainers.models.adaptation.trained_weights import linear_layers, target_modules

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "out_proj"]
DEFAULTS = {
    "whisper": PROJECTIONS,
    "speech_to_text": PROJECTIONS,
    "moonshine": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "wav2vec2": PROJECTIONS,
    "wavlm": ["intermediate_dense", "output_dense"],
    "wav2vec2-bert": ["linear_q", "linear_k", "linear_v", "linear_out"],
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_default_is_every_projection_of_every_attention(kind: str) -> None:
    model = network(kind)
    names = target_modules(model, None)
    assert names == DEFAULTS[kind]
    if kind != "wavlm":
        matched = {layer for layer in linear_layers(model) if layer.rpartition(".")[2] in names}
        assert matched == {layer for layer in linear_layers(model) if "attn" in layer or "attention" in layer}


def test_wavlm_s_attention_calls_no_projection() -> None:
    with pytest.raises(ConfigError, match=r"q_proj: the attention of wavlm never calls .* intermediate_dense"):
        target_modules(network("wavlm"), ["q_proj"])


def test_a_name_may_say_where_the_layer_is() -> None:
    wanted = ["encoder_attn.q_proj", "model.encoder.layers.0.fc1"]
    assert target_modules(network("whisper"), wanted) == wanted


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "q_prj",
            "no linear layer of whisper has a name that ends with q_prj: name some of fc1, fc2, k_proj, out_proj",
        ),
        ("proj", "no linear layer of whisper has a name that ends with proj"),
        ("conv1", "no linear layer of whisper has a name that ends with conv1"),
        ("proj_out", "proj_out: the weights of proj_out are the embeddings' too"),
    ],
)
def test_what_gets_no_adapter_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"adapt.target_modules: {words}"):
        target_modules(network("whisper"), ["q_proj", name])
