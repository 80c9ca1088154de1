"""The config.json of a GRU model, and its limits. Loads no torch."""

import sys

from rayscribe.trainers.data.frame_count import FrameCount
from rayscribe.trainers.models.ctc.ctc_family import MEL_INPUT, MEL_LEAST_SAMPLES, MEL_WINDOW
from rayscribe.trainers.models.label_codec import Limits
from transformers import AutoConfig, PretrainedConfig

LIMITS = Limits(
    context_s=60.0,
    label_tokens=sys.maxsize,
    prefix_tokens=0,
    new_tokens=None,
    # An output every 20 ms: two log-mel frames of 10 ms.
    frames=FrameCount((MEL_WINDOW, MEL_INPUT)),
    full_context=False,
    least_samples=MEL_LEAST_SAMPLES,
)


class GruConfig(PretrainedConfig):
    """The config.json of a GRU model."""

    model_type = "gru-ctc"
    # Two log-mel frames of 80 bins.
    feature_size: int = 160
    hidden_size: int = 128
    num_hidden_layers: int = 2
    vocab_size: int = 32
    ctc_loss_reduction: str = "mean"
    ctc_zero_infinity: bool = False


AutoConfig.register(GruConfig.model_type, GruConfig)
