"""Measures the timestamps of Whisper folders on a long recording: python -m tests.real.long_form FOLDER…

Clips of LibriSpeech with half a second of silence between them make a recording of ten minutes, whose times are known.
It is transcribed with transformers' long-form algorithm and, if faster-whisper is installed, with its defaults. Prints
for each model and program how much of the speech no segment covers, and how far segments begin from where a clip does.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from tests.real.corpora import LIBRISPEECH
from tests.trainers.synthetic import RATE_HZ
from trainers.scoring.error_rate import score_texts
from trainers.scoring.normalizers import normalizer_named

LENGTH_S, PAUSE_S = 600.0, 0.5


@dataclass(frozen=True)
class Part:
    """A stretch of a recording with its text. Seconds."""

    start_s: float
    end_s: float
    text: str


@dataclass(frozen=True)
class Talk:
    """A long recording, float32 at 16 kHz, and its clips."""

    samples: np.ndarray
    parts: Sequence[Part]


def make_talk(fold: int = 0, length_s: float = LENGTH_S) -> Talk:
    """Joins the clips of validation and test of a fold, again from the first if they are too short."""
    rows = [*LIBRISPEECH.rows(fold, "validation"), *LIBRISPEECH.rows(fold, "test")]
    pieces, parts, at = list[np.ndarray](), list[Part](), 0.0
    pause = np.zeros(round(PAUSE_S * RATE_HZ), np.float32)
    while at < length_s:
        row = rows[len(parts) % len(rows)]
        samples, rate_hz = soundfile.read(row["path"], dtype="float32")
        assert rate_hz == RATE_HZ
        parts.append(Part(at, at + len(samples) / RATE_HZ, row["text"]))
        pieces += [samples, pause]
        at += (len(samples) + len(pause)) / RATE_HZ
    return Talk(np.concatenate(pieces), parts)


def by_transformers(folder: Path, talk: Talk) -> list[Part]:
    """Returns the segments of transformers' sequential long-form algorithm."""
    processor = WhisperProcessor.from_pretrained(folder)
    model = WhisperForConditionalGeneration.from_pretrained(folder)
    inputs = processor(
        talk.samples,
        sampling_rate=RATE_HZ,
        return_tensors="pt",
        truncation=False,
        padding="longest",
        return_attention_mask=True,
    )
    # Without a language, transformers 5 writes no text for a long recording.
    multilingual = vars(model.generation_config)["is_multilingual"]
    spoken: dict[str, Any] = {"language": "en", "task": "transcribe"} if multilingual else {}
    with torch.no_grad():
        found = model.generate(**inputs, return_timestamps=True, return_segments=True, **spoken)["segments"][0]
    texts = processor.tokenizer.batch_decode([each["tokens"].tolist() for each in found], skip_special_tokens=True)
    return [
        Part(float(each["start"]), float(each["end"]), text.strip()) for each, text in zip(found, texts, strict=True)
    ]


def by_faster_whisper(folder: Path, talk: Talk) -> list[Part]:
    """Returns the segments of faster-whisper with its defaults."""
    from ctranslate2.converters import TransformersConverter  # noqa: PLC0415
    from faster_whisper import WhisperModel  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as made:
        copied = ["tokenizer.json", "preprocessor_config.json"]
        TransformersConverter(str(folder), copy_files=copied).convert(f"{made}/model")
        segments, _ = WhisperModel(f"{made}/model", device="cpu", compute_type="float32").transcribe(talk.samples)
        return [Part(each.start, each.end, each.text.strip()) for each in segments]


PROGRAMS: Mapping[str, Callable[[Path, Talk], list[Part]]] = {
    "transformers": by_transformers,
    **({"faster-whisper": by_faster_whisper} if find_spec("faster_whisper") else {}),
}


@dataclass(frozen=True)
class Timing:
    """How well segments fit a talk.

    Attributes:
        lost_s: Seconds of speech that no segment with text covers.
        start_error_s: Median distance of the start of a clip from the nearest start of a segment. Seconds.
        wer: Word error rate of the text, percent.
    """

    segments: int
    lost_s: float
    start_error_s: float
    wer: float

    @classmethod
    def of(cls, talk: Talk, found: Sequence[Part]) -> "Timing":
        spoken = np.zeros(len(talk.samples), bool)
        for part in talk.parts:
            spoken[round(part.start_s * RATE_HZ) : round(part.end_s * RATE_HZ)] = True
        known = [part for part in found if part.text]
        for part in known:
            spoken[round(part.start_s * RATE_HZ) : round(part.end_s * RATE_HZ)] = False
        starts = np.array([part.start_s for part in known] or [np.inf])
        distances = [float(np.abs(starts - part.start_s).min()) for part in talk.parts]
        texts = (" ".join(part.text for part in parts) for parts in (known, talk.parts))
        hypothesis, reference = texts
        score, _ = score_texts([hypothesis], [reference], normalizer_named("whisper_english"))
        wer = score.rates["wer"]
        assert wer is not None
        return cls(len(known), float(spoken.sum() / RATE_HZ), float(np.median(distances)), wer)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--length", type=float, default=LENGTH_S, metavar="S")
    parser.add_argument("--json", action="store_true", help="Print a line of JSON for each model and program.")
    given = parser.parse_args(arguments)
    talk = make_talk(length_s=given.length)
    if not given.json:
        columns = ("model", "program", "segments", "speech without a segment, s", "median error of a start, s", "WER")
        print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for folder in given.folders:
        for program, transcribe in PROGRAMS.items():
            timing = Timing.of(talk, transcribe(folder, talk))
            if given.json:
                print(json.dumps({"model": str(folder), "program": program, **asdict(timing)}), flush=True)
                continue
            rates = (f"{timing.lost_s:.1f}", f"{timing.start_error_s:.2f}", f"{timing.wer:.1f}%")
            print(f"| {' | '.join((str(folder), program, str(timing.segments), *rates))} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
