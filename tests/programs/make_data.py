"""Spoken words made of tones, manifests of them, and tiny models: what the programs of this folder train with."""

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

RATE_HZ = 16_000
WORD_S, PAUSE_S = 0.16, 0.04
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
CLIPS = {"train": 32, "valid": 8, "test": 8}


def write_data(folder: Path) -> Path:
    """Writes clips, and for each split a CSV and a JSON manifest with paths relative to them."""
    (folder / "clips").mkdir(parents=True)
    for number, (split, count) in enumerate(CLIPS.items()):
        generator = np.random.default_rng(number)
        rows = []
        for clip in range(count):
            words = [int(word) for word in generator.integers(len(WORDS), size=generator.integers(2, 5))]
            path = f"clips/{split}-{clip:03d}.wav"
            soundfile.write(folder / path, _spoken(words, generator), RATE_HZ, subtype="PCM_16")
            rows.append((path, " ".join(WORDS[word] for word in words)))
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("audio", "text"), *rows])
        lines = (json.dumps({"audio": path, "text": text}) + "\n" for path, text in rows)
        (folder / f"{split}.json").write_text("".join(lines), encoding="utf-8")
    return folder


def write_models(folder: Path) -> Path:
    """Writes a Whisper and a wav2vec2 with random weights, as they would be downloaded: `seq2seq` and `ctc`."""
    # Others need no models, and these packages take seconds to import.
    import torch  # noqa: PLC0415

    torch.manual_seed(0)
    _write_whisper(folder / "seq2seq")
    _write_wav2vec2(folder / "ctc")
    return folder


def _spoken(words: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """int16 samples (T,): a low and a high tone for each word, as a telephone's keys have them, in noise."""
    time_s = np.arange(round(WORD_S * RATE_HZ)) / RATE_HZ
    pause = np.zeros(round(PAUSE_S * RATE_HZ))
    parts = [pause]
    for word in words:
        low_hz, high_hz = 400 + 300 * (word % 4), 2000 + 700 * (word // 4)
        tones = np.sin(2 * np.pi * low_hz * time_s) + np.sin(2 * np.pi * high_hz * time_s)
        parts += [0.25 * tones * np.hanning(len(time_s)), pause]
    wave = np.concatenate(parts)
    return np.rint((wave + generator.normal(0, 0.005, len(wave))) * 32767).astype(np.int16)


def _write_whisper(folder: Path) -> None:
    from tokenizers import AddedToken, pre_tokenizers  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
        WhisperTokenizer,
    )

    end, start, no_timestamps = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, end])}
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[], pad_token=end, model_max_length=32)
    special = [AddedToken(token, special=True, normalized=False) for token in (start, no_timestamps)]
    tokenizer.add_tokens(special, special_tokens=True)
    tokenizer.set_prefix_tokens()
    start_id, no_timestamps_id = (tokenizer.convert_tokens_to_ids(token) for token in (start, no_timestamps))
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": start_id,
    }
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=len(tokenizer),
            num_mel_bins=20,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_source_positions=50,
            max_target_positions=32,
            dropout=0.1,
            **ids,
        )
    )
    model.generation_config = GenerationConfig(
        max_length=32, is_multilingual=False, no_timestamps_token_id=no_timestamps_id, return_timestamps=False, **ids
    )
    model.save_pretrained(folder)
    WhisperProcessor(WhisperFeatureExtractor(feature_size=20, chunk_length=1), tokenizer).save_pretrained(folder)


def _write_wav2vec2(folder: Path) -> None:
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model  # noqa: PLC0415

    config = Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(8, 8, 8),
        conv_kernel=(10, 8, 4),
        conv_stride=(5, 8, 4),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        layerdrop=0.0,
    )
    Wav2Vec2Model(config).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)


if __name__ == "__main__":
    write_data(Path(sys.argv[1]))
    write_models(Path(sys.argv[2]))
