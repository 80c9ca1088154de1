"""Recordings, manifests and configs that tests make on the spot."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from trainers.config.loader import build_config
from trainers.config.overrides import apply_overrides
from trainers.config.schema import TrainConfig

RATE_HZ = 16_000
MINIMAL: dict[str, Any] = {
    "data": {"train": "/data/train.csv", "validation": "/data/valid.csv"},
    "model": {
        "init": "scratch",
        "language": "English",
        "max_context_s": 3,
        "vocab_size": 300,
        "d_model": 16,
        "encoder_layers": 1,
        "attention_heads": 2,
        "max_label_tokens": 64,
    },
    "training": {"max_steps": 10},
}


def content(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The smallest valid recipe, with dotted names changed."""
    return apply_overrides(MINIMAL, [(tuple(name.split(".")), value) for name, value in (changes or {}).items()])


def config(changes: Mapping[str, Any] | None = None) -> TrainConfig:
    """The smallest valid config, with dotted names changed."""
    return build_config(content(changes), origin="test.yaml", environment={})


def speechlike(duration_s: float, seed: int = 0) -> np.ndarray:
    """int16 samples (T,): a gliding tone in noise."""
    generator = np.random.default_rng(seed)
    time_s = np.arange(round(duration_s * RATE_HZ)) / RATE_HZ
    wave = 0.3 * np.sin(2 * np.pi * (150 + 20 * seed + 100 * time_s) * time_s) + generator.normal(0, 0.02, len(time_s))
    return np.rint(wave * 32767).astype(np.int16)


def write_recording(path: Path, samples: np.ndarray, rate_hz: int = RATE_HZ) -> Path:
    """Writes int16 samples as WAV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate_hz, subtype="PCM_16")
    return path


def write_rows(path: Path, rows: Sequence[tuple[str, str]], header: tuple[str, str] = ("path", "text")) -> Path:
    """Writes a manifest of (audio path, transcript)."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def add_languages(manifest: Path, languages: Sequence[str]) -> Path:
    """Gives a manifest a column `language`."""
    with manifest.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    with manifest.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow([*header, "language"])
        csv.writer(file).writerows([*row, language] for row, language in zip(rows, languages, strict=True))
    return manifest


def write_corpus(folder: Path, texts: Sequence[str], *, durations_s: Sequence[float], name: str = "train") -> Path:
    """Writes one recording a transcript, and their manifest."""
    rows = []
    for number, (text, duration_s) in enumerate(zip(texts, durations_s, strict=True)):
        path = write_recording(folder / name / f"{number:03d}.wav", speechlike(duration_s, seed=number))
        rows.append((str(path.relative_to(folder)), text))
    return write_rows(folder / f"{name}.csv", rows)
