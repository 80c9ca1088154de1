"""The limits of a CTC model, its number of outputs, and the effect of padding on them, from its config alone."""

import sys
from typing import Any

from trainers.data.frame_count import MEL_WINDOW, Convolution, FrameCount
from trainers.models.label_codec import Limits

# Attention over 6,000 frames of 20 ms.
CONTEXT_S = 120.0
# In SeamlessM4TFeatureExtractor, two mel frames are one input of the model.
MEL_INPUT = Convolution(kernel=2, stride=2)
# With this many samples the extractor has no frame; with fewer it fails.
MEL_LEAST_SAMPLES = MEL_WINDOW.kernel - MEL_WINDOW.stride


def limits_of(config: Any) -> Limits:
    """Returns the limits of a model with this config."""
    return Limits(
        context_s=CONTEXT_S,
        label_tokens=sys.maxsize,
        prefix_tokens=0,
        new_tokens=None,
        frames=frame_count(config),
        full_context=False,
        padding_affects_output=padding_affects_output(config),
        has_bins=has_bins(config),
        # Clips too short for an output have empty hypotheses without running the convolutions over samples.
        least_samples=MEL_LEAST_SAMPLES if has_bins(config) else 1,
    )


def frame_count(config: Any) -> FrameCount:
    """Returns the layers along time, from samples to outputs, as in the model's `_get_feat_extract_output_lengths`."""
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
    """Returns True if a model's input is mel frames, not samples."""
    return bool(config.model_type == "wav2vec2-bert")


def padding_affects_output(config: Any) -> bool:
    """Returns True if the outputs of a clip depend on the padding after it, despite an attention mask.

    A group norm in the first layer averages over padding, too; several layers of positional convolutions
    (data2vec-audio) propagate it.
    """
    return getattr(config, "feat_extract_norm", None) == "group" or config.model_type == "data2vec-audio"
