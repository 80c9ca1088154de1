"""The limits of a CTC model, how many outputs it gives, and whether padding moves them: by its config alone."""

import sys
from typing import Any

from trainers.data.frame_count import MEL_WINDOW, Convolution, FrameCount
from trainers.models.label_codec import Limits

# Attention over 6,000 frames of 20 ms.
CONTEXT_S = 120.0
# Of SeamlessM4TFeatureExtractor: two mel frames are one input of the model.
MEL_INPUT = Convolution(kernel=2, stride=2)
# Its window slides from a length on at which it gives no frame: of less it fails.
MEL_LEAST_SAMPLES = MEL_WINDOW.kernel - MEL_WINDOW.stride


def limits_of(config: Any) -> Limits:
    """The limits of a model of this config."""
    return Limits(
        context_s=CONTEXT_S,
        label_tokens=sys.maxsize,
        prefix_tokens=0,
        new_tokens=None,
        frames=frame_count(config),
        full_context=False,
        padding_affects_output=padding_affects_output(config),
        has_bins=has_bins(config),
        # Of one that is too short for an output, convolutions over samples are not run: its hypothesis is empty.
        least_samples=MEL_LEAST_SAMPLES if has_bins(config) else 1,
    )


def frame_count(config: Any) -> FrameCount:
    """The layers along time, from samples to outputs, as the model's `_get_feat_extract_output_lengths` counts."""
    adapters = config.num_adapter_layers if getattr(config, "add_adapter", False) else 0
    if has_bins(config):
        kernel = config.adapter_kernel_size
        adapter = Convolution(kernel, config.adapter_stride, kernel // 2)
        return FrameCount((MEL_WINDOW, MEL_INPUT, *[adapter] * adapters))
    layers = [
        Convolution(kernel, stride) for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True)
    ]
    return FrameCount((*layers, *[Convolution(1, getattr(config, "adapter_stride", 1))] * adapters))


def has_bins(config: Any) -> bool:
    """Whether a model is given mel frames, not samples."""
    return bool(config.model_type == "wav2vec2-bert")


def padding_affects_output(config: Any) -> bool:
    """Whether outputs of a clip depend on the padding behind it, in spite of an attention mask.

    A group norm in the first layer averages over padding, too; several layers of convolutions for positions
    (data2vec-audio) carry it forward.
    """
    return getattr(config, "feat_extract_norm", None) == "group" or config.model_type == "data2vec-audio"
