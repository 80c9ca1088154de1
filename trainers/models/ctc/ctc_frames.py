"""How many outputs a CTC model gives, and whether padding moves them: by its config, without its weights."""

from typing import Any

from trainers.data.frame_count import Convolution, FrameCount

# Of SeamlessM4TFeatureExtractor: windows of 25 ms every 10 ms at 16 kHz, two of them one input of the model.
MEL_WINDOW, MEL_INPUT = Convolution(kernel=400, stride=160), Convolution(kernel=2, stride=2)


def frame_count(config: Any) -> FrameCount:
    """The layers along time of a model, from samples to outputs, as its `_get_feat_extract_output_lengths` counts.

    Args:
        config: The model's config.
    """
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
    """Whether a model is given mel frames, not samples.

    Args:
        config: The model's config.
    """
    return bool(config.model_type == "wav2vec2-bert")


def sees_padding(config: Any) -> bool:
    """Whether outputs of a clip depend on the padding behind it, in spite of an attention mask.

    A group norm in the first layer averages over padding, too; several layers of convolutions for positions
    (data2vec-audio) carry it forward.

    Args:
        config: The model's config.
    """
    return getattr(config, "feat_extract_norm", None) == "group" or config.model_type == "data2vec-audio"
