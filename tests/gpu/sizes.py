"""Whisper at the sizes of the published models, with random weights, and what a step of it computes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from tests.gpu.device import NAME
from tests.trainers.synthetic import config, write_corpus
from trainers.config.parts.data_part import DataPart
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import prepare, run_in_process
from trainers.data.prepared_set import PreparedSet
from trainers.data.sources.known_sources import open_sources
from trainers.models.families import family_of
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.models.whisper.whisper_recognizer import WhisperRecognizer

FULL_CONTEXT_S, OUTPUTS_PER_S = 30, 50
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
# Seconds of each clip in turn, about as in read speech; 30 s are what the stock recipe pads to.
DURATIONS_S = (2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 15.0, 3.0)
WORDS_PER_S = 2.5


@dataclass(frozen=True)
class Size:
    """Sizes of a Whisper model, as in the config.json of the published one."""

    name: str
    d_model: int
    layers: tuple[int, int]
    heads: int
    mels: int
    vocabulary: int

    def new_model(self) -> Any:
        """New weights, on the device."""
        sizes = WhisperConfig(
            vocab_size=self.vocabulary,
            num_mel_bins=self.mels,
            d_model=self.d_model,
            encoder_layers=self.layers[0],
            decoder_layers=self.layers[1],
            encoder_attention_heads=self.heads,
            decoder_attention_heads=self.heads,
            encoder_ffn_dim=4 * self.d_model,
            decoder_ffn_dim=4 * self.d_model,
        )
        with torch.device(NAME):
            return WhisperForConditionalGeneration(sizes)

    def flops(self, edge_s: float, tokens: int) -> float:
        """Of a forward and a backward pass of one clip: three times its matrix products forward, two flops each.

        Recomputed activations do not count (Chowdhery et al. 2022, PaLM, appendix B: model flops).
        """
        d, heard = self.d_model, edge_s * OUTPUTS_PER_S
        layer = 2 * (4 * d * d + 2 * d * 4 * d)
        convolutions = 2 * 3 * d * (self.mels * 2 * heard + d * heard)
        encoder = self.layers[0] * (heard * layer + 4 * heard**2 * d)
        cross = 2 * 2 * d * d * (heard + tokens) + 4 * heard * tokens * d
        decoder = self.layers[1] * (tokens * layer + 4 * tokens**2 * d + cross)
        return 3 * (convolutions + encoder + decoder + 2 * tokens * d * self.vocabulary)


SIZES = (
    Size("tiny", 384, (4, 4), 6, 80, 51_865),
    Size("small", 768, (12, 12), 12, 80, 51_865),
    Size("large-v3", 1280, (32, 32), 20, 128, 51_866),
)
REHEARSAL = Size("rehearsal", 16, (1, 1), 2, 80, 51_865)


@dataclass(frozen=True)
class Speech:
    """Clips of speech's lengths, and their transcripts; prepared.

    Attributes:
        prepared: The set.
        durations_s: Of each clip.
        texts: Of each clip.
    """

    prepared: PreparedSet
    durations_s: list[float]
    texts: list[str]


def new_speech(folder: Path, clips: int, longest_s: float = FULL_CONTEXT_S) -> Speech:
    """Makes and prepares tones with transcripts as long as speech's."""
    durations_s = [min(DURATIONS_S[number % len(DURATIONS_S)], longest_s) for number in range(clips)]
    texts = [
        " ".join(WORDS[(number + word) % len(WORDS)] for word in range(1 + int(duration_s * WORDS_PER_S)))
        for number, duration_s in enumerate(durations_s)
    ]
    manifest = write_corpus(folder, texts, durations_s=durations_s)
    data = DataPart(train=str(manifest), validation="/nowhere.csv")
    (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",))
    cache = str(folder / "prepared")
    prepared = prepare(
        source,
        data,
        cache_url=cache,
        storage_options=StorageOptions(),
        run="test",
        runner=run_in_process,
        log=lambda line: None,
    )
    return Speech(prepared, durations_s, texts)


def recognizer_of(size: Size, speech: Speech, made: TrainConfig) -> WhisperRecognizer:
    """A model of a size, with a small vocabulary's tokenizer: most of its outputs are never asked for."""
    part = made.model.model_copy(update={"num_mel_bins": size.mels})
    processor = family_of(part).new_processor(speech.texts, part)
    model, tokenizer = size.new_model(), processor.tokenizer
    model.config.decoder_start_token_id = tokenizer.convert_tokens_to_ids("<|startoftranscript|>")
    model.config.pad_token_id = tokenizer.pad_token_id
    return WhisperRecognizer(model, processor, WhisperFamily())


def training_config(changes: dict[str, Any]) -> TrainConfig:
    """A config of a model at full context, for what the recognizer does not say itself."""
    return config(
        {
            "model.max_context_s": None,
            "model.max_label_tokens": 448,
            "training.save_steps": 1000,
            "training.logging_steps": 1000,
            "training.report_to": [],
            "scaling.use_gpu": NAME == "cuda",
            **changes,
        }
    )
