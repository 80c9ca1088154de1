"""Models at the sizes of the published ones, with random weights, and what a step of them computes."""

from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCTC, AutoModelForSpeechSeq2Seq, Wav2Vec2BertConfig, Wav2Vec2Config, WhisperConfig

from tests.gpu.device import NAME
from tests.gpu.tones import Speech
from tests.trainers.synthetic import RATE_HZ, config
from trainers.config.schema import TrainConfig
from trainers.models.ctc.ctc_family import CtcFamily
from trainers.models.ctc.ctc_recognizer import CtcRecognizer, with_sample_convolutions
from trainers.models.families import family_of
from trainers.models.recognizer import Recognizer
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.models.whisper.whisper_recognizer import WhisperRecognizer, input_frames

FULL_CONTEXT_S, MEL_FRAMES_PER_S = 30, 100
# What wav2vec2-bert is given: two mel frames of 80 bins, side by side.
PAIRS_PER_S, PAIR_BINS = 50, 160
HEAD_WIDTH = 64
# More than the transcripts have.
CHARACTERS = 32


@dataclass(frozen=True)
class Size:
    """A model as large as a published one.

    Attributes:
        name: The published one's.
        config: Its config.json, as far as that says sizes. SpecAugment and layer drop are off, so that all recipes
            compute the same.
        batch: Clips of a forward pass.
    """

    name: str
    config: Any = field(compare=False)
    batch: int

    @property
    def is_ctc(self) -> bool:
        return not isinstance(self.config, WhisperConfig)

    @property
    def frozen(self) -> str | None:
        """Name of what is not trained: convolutions over samples, as the examples' recipe for CTC has them."""
        return "wav2vec2.feature_extractor" if self.config.model_type == "wav2vec2" else None

    def new_model(self, device: str = NAME) -> Any:
        """New weights."""
        kind: Any = AutoModelForCTC if self.is_ctc else AutoModelForSpeechSeq2Seq
        with torch.device(device):
            # The Trainer changes the config of its model.
            model = kind.from_config(deepcopy(self.config))
        if self.frozen is not None:
            model.get_submodule(self.frozen).requires_grad_(False)
        return model


@cache
def flops(size: Size, edge_s: float, tokens: int) -> int:
    """Of a forward and a backward pass of one clip that is padded to `edge_s` seconds, with labels of `tokens`.

    Three times the operations of a forward pass as torch counts them, one time those of what is frozen: two for each
    product that is added, in matrix products, attention's among them, and convolutions. What is computed again does not
    count (Chowdhery et al. 2022, PaLM, appendix B: model flops).
    """
    network = _network(size)
    length: AbstractContextManager[None] = nullcontext()
    if size.is_ctc:
        shape = (1, round(edge_s * PAIRS_PER_S), PAIR_BINS)
        inputs = {network.main_input_name: torch.zeros(*((1, round(edge_s * RATE_HZ)) if size.frozen else shape))}
    else:
        frames = 2 * round(edge_s * MEL_FRAMES_PER_S / 2)
        inputs = {"input_features": torch.zeros(1, size.config.num_mel_bins, frames)}
        inputs["decoder_input_ids"] = torch.zeros(1, tokens, dtype=torch.int64)
        length = input_frames(network, frames)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), length:
        network(**{name: values.to("meta") for name, values in inputs.items()})
    frozen = counter.get_flop_counts().get(f"{type(network).__name__}.{size.frozen}", {})
    return int(3 * counter.get_total_flops() - 2 * sum(frozen.values()))


@cache
def _network(size: Size) -> Any:
    """Weights that take no memory; attention as products, which the counter knows on any device."""
    network = size.new_model("meta").eval()
    network.set_attn_implementation("eager")
    return network


def whisper(d_model: int, layers: tuple[int, int], mels: int, vocabulary: int) -> WhisperConfig:
    """As in the published config.json: heads of 64, and four times the width within a layer."""
    return WhisperConfig(
        vocab_size=vocabulary,
        num_mel_bins=mels,
        d_model=d_model,
        encoder_layers=layers[0],
        decoder_layers=layers[1],
        encoder_attention_heads=d_model // HEAD_WIDTH,
        decoder_attention_heads=d_model // HEAD_WIDTH,
        encoder_ffn_dim=4 * d_model,
        decoder_ffn_dim=4 * d_model,
    )


def wav2vec2(d_model: int, layers: int, convolutions: int = 512) -> Wav2Vec2Config:
    """As in the config.json of facebook/wav2vec2-large-xlsr-53."""
    return Wav2Vec2Config(
        **_encoder(d_model, layers),
        conv_dim=[convolutions] * 7,
        conv_bias=True,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
    )


def wav2vec2_bert(d_model: int, layers: int) -> Wav2Vec2BertConfig:
    """As in the config.json of facebook/w2v-bert-2.0."""
    return Wav2Vec2BertConfig(
        **_encoder(d_model, layers),
        feature_projection_input_dim=PAIR_BINS,
        position_embeddings_type="relative_key",
        conv_depthwise_kernel_size=31,
    )


def _encoder(d_model: int, layers: int) -> dict[str, Any]:
    return {
        "vocab_size": CHARACTERS,
        "hidden_size": d_model,
        "num_hidden_layers": layers,
        "num_attention_heads": d_model // HEAD_WIDTH,
        "intermediate_size": 4 * d_model,
        "mask_time_prob": 0.0,
        "layerdrop": 0.0,
    }


LARGE = Size("whisper-large-v3", whisper(1280, (32, 32), 128, 51_866), 16)
SIZES = (
    Size("whisper-tiny", whisper(384, (4, 4), 80, 51_865), 32),
    Size("whisper-small", whisper(768, (12, 12), 80, 51_865), 32),
    Size("whisper-large-v3-turbo", whisper(1280, (32, 4), 128, 51_866), 16),
    LARGE,
    Size("wav2vec2-large", wav2vec2(1024, 24), 32),
    Size("w2v-bert-2.0", wav2vec2_bert(1024, 24), 16),
)
REHEARSAL = (
    Size("whisper-rehearsal", whisper(64, (1, 1), 80, 51_865), 1),
    Size("wav2vec2-rehearsal", wav2vec2(64, 1, 16), 1),
    Size("w2v-bert-rehearsal", wav2vec2_bert(64, 1), 1),
)


def recognizer_of(size: Size, speech: Speech, made: TrainConfig) -> Recognizer:
    """A model of a size, with a small vocabulary's tokenizer: most of its outputs are never asked for."""
    model = size.new_model()
    processor = processor_of(size, speech, made)
    model.config.pad_token_id = processor.tokenizer.pad_token_id
    if size.is_ctc:
        with_sample_convolutions(model)
        return CtcRecognizer(model, processor, CtcFamily())
    model.config.decoder_start_token_id = processor.tokenizer.convert_tokens_to_ids("<|startoftranscript|>")
    return WhisperRecognizer(model, processor, WhisperFamily())


def processor_of(size: Size, speech: Speech, made: TrainConfig) -> Any:
    """The model's feature extractor, and a tokenizer of the transcripts."""
    bins = {} if size.is_ctc else {"num_mel_bins": size.config.num_mel_bins}
    part = made.model.model_copy(update=bins)
    return family_of(part).new_processor(speech.texts, part)


def training_config(size: Size, changes: dict[str, Any] | None = None) -> TrainConfig:
    """A config of a size's batch and family at full context, for what the recognizer does not say itself."""
    ctc = {"init": "scratch", "family": "ctc", "architecture": size.config.model_type}
    whisper_alone = {"model.max_context_s": None, "model.max_label_tokens": 448}
    # What a run's first start decides, see `pipeline.experiment`.
    model = {"model": ctc, "training.pad_to": "longest"} if size.is_ctc else whisper_alone
    return config(
        {
            **model,
            "training.save_steps": 1000,
            "training.logging_steps": 1000,
            "training.report_to": [],
            "training.bf16": True,
            "training.per_device_train_batch_size": size.batch,
            "scaling.use_gpu": NAME == "cuda",
            **(changes or {}),
        }
    )
