"""The clips: recorded digits joined to utterances of two to three seconds, or the demo corpus where there are none."""

import csv
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr

from tests.benchmarks.sizes import RANKS, Sizes
from tests.settings import speech_data
from trainers.config.parts.data_part import DemoPart
from trainers.data.sources.demo_corpus import make_demo_corpus

SAMPLING_RATE_HZ = 16_000
SHORTEST_S, LONGEST_S = 2.0, 3.0
PAUSE_S = 0.06
LONGEST_DIGIT_S = 0.9


@dataclass(frozen=True)
class Speech:
    """Clips and their manifests.

    Attributes:
        folder: Holds train.csv, score.csv, score-short.csv and warm.csv, which name WAV files next to them.
        origin: What was spoken, for the report.
        clips: Clips of train.csv.
        mean_s: Their mean duration, seconds.
    """

    folder: Path
    origin: str
    clips: int
    mean_s: float


def make_speech(folder: Path, sizes: Sizes) -> Speech:
    """Writes the clips and manifests; the same data and sizes give the same bytes."""
    source = speech_data() / "fsdd"
    folder.mkdir(parents=True)
    if source.is_dir():
        rows, origin = _join_digits(source, folder, sizes.our_clips), "recorded digits (FSDD), joined, 16 kHz WAV"
    else:
        rows, origin = _demo(folder, sizes.our_clips), "demo corpus (espeak-ng), 22.05 kHz WAV"
    _write_manifest(folder / "train.csv", rows)
    _write_manifest(folder / "score.csv", rows[: sizes.score_clips])
    _write_manifest(folder / "score-short.csv", rows[: sizes.short_score_clips])
    _write_manifest(folder / "warm.csv", rows[-RANKS * sizes.score_batch :])
    return Speech(folder, origin, len(rows), sum(float(row["duration"]) for row in rows) / len(rows))


def _join_digits(source: Path, folder: Path, count: int) -> list[dict[str, str]]:
    spoken: dict[str, list[tuple[np.ndarray, str]]] = {}
    for row in csv.DictReader((source / "train.csv").open(encoding="utf-8")):
        if float(row["duration"]) < LONGEST_DIGIT_S:
            samples, rate_hz = soundfile.read(source / row["path"], dtype="int16")
            resampled = soxr.resample(samples, rate_hz, SAMPLING_RATE_HZ)
            spoken.setdefault(row["speaker"], []).append((resampled, row["text"]))
    speakers = sorted(spoken)
    pause = np.zeros(round(PAUSE_S * SAMPLING_RATE_HZ), dtype=np.int16)
    generator = random.Random(0)
    rows = []
    for number in range(count):
        wanted = generator.uniform(SHORTEST_S, LONGEST_S) * SAMPLING_RATE_HZ
        digits = spoken[speakers[number % len(speakers)]]
        pieces: list[np.ndarray] = []
        words: list[str] = []
        length = 0
        while not words or length < wanted - SAMPLING_RATE_HZ * 0.2:
            samples, word = generator.choice(digits)
            pieces += [samples, pause]
            words.append(word)
            length += len(samples) + len(pause)
        name = f"{number:05d}.wav"
        soundfile.write(folder / name, np.concatenate(pieces[:-1]), SAMPLING_RATE_HZ, subtype="PCM_16")
        duration_s = (length - len(pause)) / SAMPLING_RATE_HZ
        rows.append({"path": name, "text": " ".join(words), "duration": f"{duration_s:.3f}"})
    return rows


def _demo(folder: Path, count: int) -> list[dict[str, str]]:
    # Eight words take two to three seconds.
    manifest = make_demo_corpus(folder / "demo", DemoPart(train_utterances=count), (7, 9))["train"]
    rows = csv.DictReader(manifest.open(encoding="utf-8"))
    return [{"path": f"demo/{row['path']}", "text": row["text"], "duration": row["duration"]} for row in rows]


def _write_manifest(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ("path", "text", "duration"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
