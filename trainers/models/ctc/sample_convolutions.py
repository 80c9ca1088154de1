"""Convolutions over samples as matrix products with channels last: for CPUs, and models that normalize each frame.

Between two convolutions such a model transposes twice for its layer norm, and oneDNN wants channels first: a fifth of a
training step of wav2vec2 is copies from one layout to the other, and a tenth a GELU whose gradient comes in another
layout than its input. Here all stays in the layout of the layer norm: a convolution is the sum of one matrix product
for each `stride` of its taps, whose left side is a view of the input. Nothing is copied, and the numbers are those of
`torch.nn.Conv1d` up to rounding.
"""

from collections.abc import Iterator
from typing import Any

import torch


class SampleConvolution(torch.nn.Conv1d):
    """A Conv1d without padding, groups and dilation; anywhere but in float32 on a CPU it is the plain one."""

    @classmethod
    def of(cls, convolution: torch.nn.Conv1d) -> "SampleConvolution":
        """The same with the same parameters."""
        sizes: Any = {
            name: getattr(convolution, name) for name in ("in_channels", "out_channels", "kernel_size", "stride")
        }
        made = cls(**sizes, bias=convolution.bias is not None, device="meta")
        made.weight, made.bias = convolution.weight, convolution.bias
        return made

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Gives (B, out channels, frames), a view with channels last, of inputs (B, channels, T)."""
        is_plain = inputs.device.type != "cpu" or inputs.dtype != torch.float32 or torch.is_autocast_enabled("cpu")
        if is_plain:
            return super().forward(inputs)
        product: Any = _Product
        frames: torch.Tensor = product.apply(
            inputs.transpose(1, 2).contiguous(), self.weight, self.bias, self.stride[0]
        )
        return frames.transpose(1, 2)


def with_sample_convolutions(network: Any) -> None:
    """Exchanges a network's convolutions over samples where a layer norm follows each."""
    for layer in getattr(getattr(network.base_model, "feature_extractor", None), "conv_layers", ()):
        is_plain = not isinstance(layer.conv, SampleConvolution)
        if is_plain and isinstance(getattr(layer, "layer_norm", None), torch.nn.LayerNorm):
            layer.conv = SampleConvolution.of(layer.conv)


class _Product(torch.autograd.Function):
    """The convolution of inputs (B, T, C), contiguous, by a Conv1d's weight (O, C, K) and bias (O,): (B, frames, O)."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: int) -> Any:
        ctx.save_for_backward(inputs, weight)
        ctx.stride = stride
        frames = (inputs.shape[1] - weight.shape[2]) // stride + 1
        outputs = inputs.new_empty(inputs.shape[0], frames, weight.shape[0])
        outputs.copy_(bias) if bias is not None else outputs.zero_()
        for taps, seen in zip(_by_stride(weight, stride), _views(inputs, weight, stride, frames), strict=True):
            outputs.baddbmm_(seen, taps.expand(len(inputs), -1, -1))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        inputs, weight = ctx.saved_tensors
        gradient, stride = gradients[0].contiguous(), ctx.stride
        of_inputs = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_inputs = torch.zeros_like(inputs)
            views = _views(of_inputs, weight, stride, gradient.shape[1])
            for taps, seen in zip(_by_stride(weight, stride), views, strict=True):
                seen.baddbmm_(gradient, taps.T.expand(len(inputs), -1, -1))
        if ctx.needs_input_grad[1]:
            # Taps first, as in `_by_stride`.
            of_weight = torch.zeros_like(weight.permute(2, 1, 0), memory_format=torch.contiguous_format)
            views = _views(inputs, weight, stride, gradient.shape[1])
            for part, seen in zip(of_weight.split(stride), views, strict=True):
                for clip, own in zip(seen, gradient, strict=True):
                    part.view(-1, len(weight)).addmm_(clip.T, own)
            of_weight = of_weight.permute(2, 1, 0)
        if ctx.needs_input_grad[2]:
            of_bias = gradient.sum(dim=(0, 1))
        return of_inputs, of_weight, of_bias, None


def _by_stride(weight: torch.Tensor, stride: int) -> Iterator[torch.Tensor]:
    """Each `stride` of the taps of a weight (O, C, K): (taps × C, O)."""
    for part in weight.permute(2, 1, 0).contiguous().split(stride):
        yield part.reshape(-1, len(weight))


def _views(inputs: torch.Tensor, weight: torch.Tensor, stride: int, frames: int) -> Iterator[torch.Tensor]:
    """What each `stride` of the taps sees of inputs (B, T, C): (B, frames, taps × C), whose rows do not overlap."""
    clips, length, channels = inputs.shape
    for first in range(0, weight.shape[2], stride):
        taps = min(stride, weight.shape[2] - first)
        yield inputs.as_strided(
            (clips, frames, taps * channels),
            (length * channels, stride * channels, 1),
            inputs.storage_offset() + first * channels,
        )
