"""Convolutions as matrix products: the numbers and gradients of Conv1d, and where they are exchanged."""

from typing import Any

import pytest
import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

from trainers.models.ctc.ctc_recognizer import SampleConvolution, with_sample_convolutions

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": (8, 8, 8),
    "conv_kernel": (10, 3, 2),
    "conv_stride": (5, 2, 2),
    "vocab_size": 12,
    "do_stable_layer_norm": True,
}


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "length"),
    [(1, 10, 5, 403), (6, 3, 2, 40), (6, 3, 2, 41), (6, 2, 2, 17), (4, 3, 1, 9), (4, 2, 3, 12), (5, 7, 3, 7)],
)
def test_outputs_and_gradients_are_those_of_conv1d(
    channels: int, kernel: int, stride: int, length: int, has_bias: bool
) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Conv1d(channels, 7, kernel, stride, bias=has_bias)
    inputs = torch.randn(3, channels, length, requires_grad=True)
    wanted = plain(inputs)
    upstream = torch.randn_like(wanted)
    expected = torch.autograd.grad(wanted, [inputs, *plain.parameters()], upstream)
    own = SampleConvolution.of(plain)
    given = own(inputs)
    assert given.transpose(1, 2).is_contiguous()
    torch.testing.assert_close(given, wanted)
    torch.testing.assert_close(torch.autograd.grad(given, [inputs, *own.parameters()], upstream), expected)


def test_a_frozen_one_gives_its_input_s_gradient_alone() -> None:
    frozen = SampleConvolution(2, 3, 3, 2).requires_grad_(False)
    inputs = torch.randn(1, 2, 9, requires_grad=True)
    frozen(inputs).sum().backward()
    assert inputs.grad is not None
    assert all(parameter.grad is None for parameter in frozen.parameters())


def test_in_less_than_float32_it_is_the_plain_one() -> None:
    own = SampleConvolution(2, 3, 3, 2)
    inputs = torch.randn(1, 2, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert own(inputs).dtype == torch.bfloat16
    assert own.double()(inputs.double()).dtype == torch.float64


@pytest.mark.parametrize(("norm", "exchanged"), [("layer", 3), ("group", 0)])
def test_a_model_with_a_layer_norm_behind_each_gives_the_same(norm: str, exchanged: int) -> None:
    torch.manual_seed(0)
    network = Wav2Vec2ForCTC(Wav2Vec2Config(feat_extract_norm=norm, **SMALL)).eval()
    names, samples = list(network.state_dict()), torch.randn(2, 2000)
    with torch.no_grad():
        expected = network(samples).logits
        with_sample_convolutions(network)
        torch.testing.assert_close(network(samples).logits, expected)
    assert sum(isinstance(module, SampleConvolution) for module in network.modules()) == exchanged
    assert list(network.state_dict()) == names
