"""A Whisper of 30 s of context and a wav2vec2, of new weights, that both sides open with from_pretrained."""

import csv
import random
import string
from pathlib import Path

import transformers

from tests.benchmarks.sizes import Sizes
from trainers.models.ctc.ctc_family import CtcFamily
from trainers.models.ctc.ctc_part import CtcPart
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.models.whisper.whisper_part import WhisperPart

HEAD_WIDTH = 64
WORD_LETTERS = 8


def write_weights(folder: Path, manifest: Path, sizes: Sizes) -> int:
    """Writes model, tokenizer and feature extractor; returns how many weights there are."""
    transformers.logging.disable_progress_bar()
    part = WhisperPart(
        init="scratch",
        language="english",
        vocab_size=sizes.vocab_size,
        d_model=sizes.d_model,
        encoder_layers=sizes.encoder_layers,
        decoder_layers=sizes.decoder_layers,
        attention_heads=sizes.d_model // HEAD_WIDTH,
    )
    WhisperFamily().write_description(folder, [*texts_of(manifest), *made_words(sizes.vocab_size)], part)
    network = WhisperFamily().load_recognizer(part, folder, seed=0).model
    # New weights utter timestamps, after which generate goes back to the audio; trained ones, told not to, do not.
    last_word = network.generation_config.no_timestamps_token_id
    network.generation_config.suppress_tokens = list(range(last_word + 1, network.config.vocab_size))
    network.save_pretrained(folder)
    return sum(weight.numel() for weight in network.parameters())


def write_ctc_weights(folder: Path, manifest: Path, sizes: Sizes) -> int:
    """The same of a wav2vec2 with a layer norm, whose padding both sides mask."""
    part = CtcPart(
        init="scratch",
        family="ctc",
        architecture="wav2vec2",
        d_model=sizes.d_model,
        encoder_layers=sizes.encoder_layers,
        attention_heads=sizes.d_model // HEAD_WIDTH,
        feature_encoder_dim=sizes.d_model,
    )
    CtcFamily().write_description(folder, texts_of(manifest), part)
    recognizer = CtcFamily().load_recognizer(part, folder, seed=0)
    recognizer.model.save_pretrained(folder)
    CtcFamily().write_legacy_processor_files(folder)
    return sum(weight.numel() for weight in recognizer.model.parameters())


def made_words(count: int) -> list[str]:
    """Words of random letters, so that a vocabulary of this many tokens can be learned, where the corpus has few."""
    letters = random.Random(0)
    return ["".join(letters.choices(string.ascii_lowercase, k=WORD_LETTERS)) for _ in range(count)]


def texts_of(manifest: Path) -> list[str]:
    """The transcripts of a manifest."""
    with manifest.open(encoding="utf-8") as file:
        return [row["text"] for row in csv.DictReader(file)]
