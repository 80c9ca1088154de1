"""Defines the CTC family: its processors, whose vocabulary is learned or pretrained, its labels and its limits."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import transformers
from transformers import AutoConfig, AutoFeatureExtractor, AutoTokenizer

from trainers.config.schema import TrainConfig
from trainers.data.frame_count import MEL_WINDOW, Convolution, FrameCount
from trainers.errors import ConfigError
from trainers.findings import named
from trainers.models.adaptation.network_parts import ENCODER, HEAD, Parts
from trainers.models.ctc.ctc_part import CtcPart
from trainers.models.ctc.ctc_scratch import (
    for_tokenizer,
    new_config,
    new_extractor,
    new_tokenizer,
    processor_of,
    refuse_other_vocabulary,
    regularization,
    unknown_characters,
)
from trainers.models.family import Family
from trainers.models.label_codec import Limits
from trainers.models.pretrained import from_pretrained, refuse_without_processor
from trainers.models.tokenizer_processor import (
    refuse_other_rate,
    refuse_tokens_beyond,
    split_processor,
    tokenizer_fingerprint,
)

# Limits attention to 6,000 frames of 20 ms.
CONTEXT_S = 120.0
# In SeamlessM4TFeatureExtractor, two mel frames are one input of the model.
MEL_INPUT = Convolution(kernel=2, stride=2)
# With this many samples the extractor has no frame; with fewer it fails.
MEL_LEAST_SAMPLES = MEL_WINDOW.kernel - MEL_WINDOW.stride


class CtcFamily(Family[CtcPart]):
    """Models with an output for each frame; the processor is a Wav2Vec2Processor or Wav2Vec2BertProcessor."""

    name = "ctc"
    model_types: tuple[str, ...] = (
        *("wav2vec2", "hubert", "wavlm", "wav2vec2-bert", "data2vec-audio"),
        *("unispeech", "unispeech-sat"),
    )

    context_s = CONTEXT_S
    recognizer: ClassVar[str] = f"{__package__}.ctc_recognizer:CtcRecognizer"
    sizes: ClassVar[Sequence[str] | None] = (
        *("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        *("intermediate_size", "conv_dim"),
    )

    def auto_class(self, config: Any) -> Any:
        return transformers.AutoModelForCTC

    def parts(self, network: Any) -> Parts:
        return {ENCODER: [network.base_model_prefix], HEAD: ["lm_head"]}

    def learns_processor(self, model: CtcPart) -> bool:
        """Returns False if pretrained weights keep their vocabulary, as by default if they have an output layer."""
        if model.init == "scratch" or model.vocabulary_file is not None or model.vocabulary in ("characters", "bpe"):
            return True
        return model.vocabulary != "own" and not _has_head(model)

    def makes_new_head(self, model: CtcPart) -> bool:
        return self.learns_processor(model) or not _has_head(model)

    def new_processor(self, texts: Sequence[str], model: CtcPart) -> Any:
        """Makes a processor, whose feature extractor is that of the pretrained weights, if there are any."""
        extractor = new_extractor(model) if model.init == "scratch" else _open_extractor(model)
        return processor_of(extractor, new_tokenizer(texts, model))

    def write_description(self, folder: Path, texts: Sequence[str], model: CtcPart) -> None:
        processor = self.new_processor(texts, model)
        config = new_config(model, processor.tokenizer) if model.init == "scratch" else _read_config(model)
        tokens = for_tokenizer(processor.tokenizer)
        if config.model_type == "unispeech-sat":
            # The tokenizer's class refuses null, and CTC uses neither start nor end (seen with transformers 5.23).
            tokens = {name: value for name, value in tokens.items() if value is not None}
        config.update({**tokens, **regularization(model)})
        processor.save_pretrained(folder)
        config.save_pretrained(folder)

    def adopt_description(self, source: Path, folder: Path, model: CtcPart) -> None:
        config, processor = self.open_checkpoint(source, model)
        refuse_other_vocabulary(processor.tokenizer, model)
        config.update(regularization(model))
        processor.save_pretrained(folder)
        config.save_pretrained(folder)

    def open_processor(self, model: CtcPart, description: Path | None) -> Any:
        if description is not None:
            opened = [kind.from_pretrained(description) for kind in (AutoFeatureExtractor, AutoTokenizer)]
            return processor_of(*opened)
        refuse_without_processor(model)
        tokenizer, config = from_pretrained(model, AutoTokenizer), _read_config(model)
        origin = f"model.name_or_path: {model.name_or_path}"
        if config.pad_token_id != tokenizer.pad_token_id:
            raise ConfigError(
                f"{origin}: the tokenizer's blank is {tokenizer.pad_token} "
                f"({tokenizer.pad_token_id}), but pad_token_id in config.json is {config.pad_token_id}: correct one"
            )
        used = (tokenizer.pad_token_id, tokenizer.unk_token_id)
        refuse_tokens_beyond(tokenizer, config.vocab_size, used, origin)
        return processor_of(_open_extractor(model), tokenizer)

    def model_config(self, model: CtcPart, processor: Any) -> Any:
        if model.init == "scratch" and processor is not None:
            return new_config(model, processor.tokenizer)
        return super().model_config(model, processor)

    def limits(self, config: Any, processor: Any) -> Limits:
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

    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = processor.tokenizer(list(texts), add_special_tokens=False).input_ids if texts else []
        return ids

    def misfits(self, config: TrainConfig, limits: Limits) -> list[str]:
        found = super().misfits(config, limits)
        fields = {"data.empty_text": "leave_out", "augment.no_speech_fraction": 0}
        values = (config.data.empty_text, config.augment.no_speech_fraction)
        return found + [
            f"{field} is {value}, but CTC models learn nothing from clips with an empty text: set it to {neutral}"
            for (field, neutral), value in zip(fields.items(), values, strict=True)
            if value != neutral
        ]

    def check_texts(self, processor: Any, texts: Iterable[str]) -> str | None:
        """Returns a message about characters outside the vocabulary, which no hypothesis has; None if there is none."""
        unknown, count, total = unknown_characters(processor.tokenizer, texts)
        if not unknown:
            return None
        what = f"{count} of {total} characters are not in the vocabulary ({named(unknown)})"
        problem = f"{what}, so they cannot appear in a hypothesis"
        if 2 * count > total:
            raise ConfigError(
                f"{problem}: give model.vocabulary_file, or data.do_lower_case, as the weights were trained"
            )
        return problem

    def labels_fingerprint(self, processor: Any) -> str:
        return tokenizer_fingerprint(processor.tokenizer, f"{version('transformers')} {version('tokenizers')}")

    def export_processor(self, folder: Path) -> None:
        split_processor(folder)


def _read_config(model: CtcPart) -> Any:
    return from_pretrained(model, AutoConfig)


def _has_head(model: CtcPart) -> bool:
    """Returns True if pretrained weights were saved with an output layer for labels."""
    return any(name.endswith("ForCTC") for name in _read_config(model).architectures or ())


def _open_extractor(model: CtcPart) -> Any:
    config = _read_config(model)
    if model.freeze_feature_encoder and config.model_type == "wav2vec2-bert":
        raise ConfigError(
            f"model.freeze_feature_encoder: {model.name_or_path} has no convolutions over samples: remove it"
        )
    width = config.hidden_size
    if model.apply_spec_augment and (model.mask_feature_length or 0) > width:
        raise ConfigError(
            f"model.mask_feature_length {model.mask_feature_length} is more than the {width} hidden dimensions of "
            f"{model.name_or_path}"
        )
    refuse_without_processor(model, tokenizer=False)
    extractor = from_pretrained(model, AutoFeatureExtractor)
    refuse_other_rate(extractor, f"model.name_or_path: {model.name_or_path}")
    return extractor


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
