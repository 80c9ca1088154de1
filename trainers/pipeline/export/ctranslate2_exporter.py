"""Exports a Whisper model to CTranslate2, in the layout that faster-whisper opens."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from trainers.models.whisper.whisper_generation import is_multilingual, suppressed_tokens
from trainers.pipeline.export.exporter import Source

TOKENIZER, VOCABULARY = "tokenizer.json", "vocabulary.json"
EMPTY = ""


class CTranslate2:
    """CTranslate2's format for Whisper models, made by its converter for transformers."""

    def refusal(self, source: Source) -> str | None:
        return source.refusal_unless("whisper", "only Whispers")

    def convert(self, source: Source, folder: Path) -> None:
        from ctranslate2.converters import TransformersConverter  # noqa: PLC0415

        # The converter replaces the folder, so other files are written later.
        TransformersConverter(str(source.folder), copy_files=[TOKENIZER]).convert(str(folder), force=True)
        # faster-whisper reads the feature extractor's config next to the tokenizer.
        source.recognizer.processor.feature_extractor.save_pretrained(folder)
        if is_multilingual(source.recognizer.model.generation_config):
            _mark_multilingual(folder / VOCABULARY)

    def open(self, folder: Path, source: Source) -> "_Whisper":
        return _Whisper(folder, source)


def _mark_multilingual(vocabulary: Path) -> None:
    """Adds an empty token, by which CTranslate2 recognizes the vocabularies of released multilingual models.

    Without the token, faster-whisper leaves the language out of the prompt. It is placed after the model's own tokens.
    """
    tokens = json.loads(vocabulary.read_text(encoding="utf-8"))
    if EMPTY not in tokens:
        vocabulary.write_text(json.dumps([*tokens, EMPTY], ensure_ascii=False), encoding="utf-8")


class _Whisper:
    """Greedy or beam search, as in the run."""

    def __init__(self, folder: Path, source: Source):
        import ctranslate2  # noqa: PLC0415

        self._runtime = ctranslate2
        self._model: Any = ctranslate2.models.Whisper(str(folder), device="cpu", compute_type="float32")
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._start = int(source.recognizer.model.config.decoder_start_token_id)
        self._prefix = source.recognizer.limits.prefix_tokens
        self._most, self._beams = source.most_new_tokens, source.decoding.part.num_beams
        recognizer, as_written = source.recognizer, source.decoding.as_written
        self._suppressed = suppressed_tokens(recognizer.model, recognizer.processor.tokenizer, as_written=as_written)

    def recognize(self, inputs: Mapping[str, torch.Tensor], label: Sequence[int]) -> str:
        prompt = [self._start, *label[: self._prefix]]
        (result,) = self._model.generate(
            self._runtime.StorageView.from_array(inputs["input_features"].numpy()),
            [prompt],
            beam_size=self._beams,
            # CTranslate2 generates at most half of this, and at most this minus the prompt.
            max_length=max(2 * self._most, self._most + len(prompt)),
            suppress_tokens=self._suppressed,
        )
        text: str = self._tokenizer.decode(result.sequences_ids[0], skip_special_tokens=True)
        return text.strip()
