"""The family of encoder-decoder models other than Whisper: processors, labels and limits, all of pretrained weights."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import transformers
from transformers import AutoConfig

from trainers.errors import ConfigError
from trainers.models.adaptation.network_parts import PROJECTOR, Parts, encoder_decoder_parts
from trainers.models.family import Family
from trainers.models.label_codec import Limits
from trainers.models.pretrained import (
    from_pretrained,
    open_pretrained,
    refuse_other_architecture,
    refuse_without_processor,
)
from trainers.models.seq2seq.seq2seq_part import Seq2SeqPart
from trainers.models.seq2seq.seq2seq_processor import CONTEXT_S, Seq2SeqProcessor, limits_of, processor_of, token_of
from trainers.models.tokenizer_processor import tokenizer_fingerprint


class Seq2SeqFamily(Family[Seq2SeqPart]):
    """Models of AutoModelForSpeechSeq2Seq that need no more than their inputs."""

    name = "seq2seq"
    model_types: tuple[str, ...] = ("speech_to_text", "speech-encoder-decoder", "moonshine")

    context_s = CONTEXT_S
    recognizer: ClassVar[str] = f"{__package__}.seq2seq_recognizer:Seq2SeqRecognizer"

    def auto_class(self, config: Any) -> Any:
        return transformers.AutoModelForSpeechSeq2Seq

    def parts(self, network: Any) -> Parts:
        parts = encoder_decoder_parts(network)
        return {**parts, PROJECTOR: ["enc_to_dec_proj"]} if hasattr(network, "enc_to_dec_proj") else parts

    def adopt_description(self, source: Path, folder: Path, model: Seq2SeqPart) -> None:
        config = AutoConfig.from_pretrained(source)
        refuse_other_architecture(config, model)
        processor_of(source, "main", config, model.language).save_pretrained(folder)
        config.save_pretrained(folder)

    def open_processor(self, model: Seq2SeqPart, description: Path | None) -> Seq2SeqProcessor:
        if description is not None:
            return processor_of(description, "main", AutoConfig.from_pretrained(description))
        refuse_without_processor(model)
        name, revision = str(model.name_or_path), model.revision or "main"
        config = from_pretrained(model, AutoConfig)
        return open_pretrained(model, lambda: processor_of(name, revision, config, model.language))

    def limits(self, config: Any, processor: Any) -> Limits:
        return limits_of(config, processor)

    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        """Label ids of each text: the tokenizer's own without the decoder's start token, and one end token."""
        encoded = processor.tokenizer(list(texts)).input_ids if texts else []
        inner = [list(ids[1:] if ids and ids[0] == processor.start_id else ids) for ids in encoded]
        return [ids if ids and ids[-1] == processor.end_id else [*ids, processor.end_id] for ids in inner]

    def labels_fingerprint(self, processor: Any) -> str:
        """What the tokenizer saves, and the tokens around a text."""
        tokens = (processor.start_id, processor.end_id, version("transformers"), version("tokenizers"))
        return tokenizer_fingerprint(processor.tokenizer, repr(tokens))

    def language_prefix(self, processor: Seq2SeqProcessor | None, language: str | None) -> list[int]:
        if processor is None or processor.language_id is None:
            return []
        if language is None:
            return [processor.language_id]
        tokens: dict[str, int] = processor.tokenizer.lang_code_to_id
        token = token_of(processor.tokenizer, language)
        if token is None:
            raise ConfigError(f"the model has tokens for {', '.join(sorted(tokens))}")
        return [tokens[token]]
