"""What transcribes recordings in turns, in one process of as many threads as other sides have ranks."""

import argparse
import csv
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jiwer
import torch

from tests.benchmarks.comparison.turns import Turns
from tests.benchmarks.sizes import RANKS
from trainers.config.parts.decode_part import GenerationPart
from trainers.models.families import family_of_folder
from trainers.models.recognizer import Decoding
from trainers.pipeline.export.ctranslate2_exporter import CTranslate2
from trainers.pipeline.export.exporter import Source
from trainers.pipeline.transcription.transcription_command import transcribe_request
from trainers.pipeline.transcription.transcription_request import TranscriptionRequest

# Texts of recordings, and seconds without loading the model.
Transcribe = Callable[[Sequence[Path]], tuple[list[str], float]]
# As ours: the likeliest token, no time stamps, no second attempt, nothing left out.
GREEDY = {
    "language": "en",
    "beam_size": 1,
    "temperature": 0.0,
    "without_timestamps": True,
    "condition_on_previous_text": False,
    "no_speech_threshold": None,
    "log_prob_threshold": None,
    "compression_ratio_threshold": None,
}


def with_rayscribe(model: Path) -> Transcribe:
    """As `rayscribe transcribe`, which says the same seconds."""
    torch.set_num_threads(RANKS)

    def transcribe(recordings: Sequence[Path]) -> tuple[list[str], float]:
        request = TranscriptionRequest(str(model), [str(path) for path in recordings], ray=False)
        result = transcribe_request(request)
        return [transcript.text for transcript in result.transcripts], result.took_s

    return transcribe


def with_faster_whisper(model: Path) -> Transcribe:
    """Converted as `rayscribe export` does, in float32, one recording after another."""
    from faster_whisper import WhisperModel  # noqa: PLC0415

    converted = model.with_name(f"{model.name}-ctranslate2")
    recognizer = family_of_folder(model).open_exported(model)
    CTranslate2().convert(Source(model, recognizer, Decoding(GenerationPart(max_length=1))), converted)
    opened = WhisperModel(str(converted), device="cpu", compute_type="float32", cpu_threads=RANKS)

    def transcribe(recordings: Sequence[Path]) -> tuple[list[str], float]:
        began_s = time.perf_counter()
        segments = [opened.transcribe(str(path), **GREEDY)[0] for path in recordings]
        texts = ["".join(segment.text for segment in own).strip() for own in segments]
        return texts, time.perf_counter() - began_s

    return transcribe


VERBS = {"rayscribe": with_rayscribe, "faster-whisper": with_faster_whisper}


def main() -> None:
    """Transcribes the recordings of a manifest in each turn; one of them goes before, uncounted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--turns", help="address of the benchmark")
    given = parser.parse_args()
    with given.manifest.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    recordings = [given.manifest.parent / row["path"] for row in rows]
    transcribe = VERBS[given.verb](given.model)
    transcribe(recordings[:1])
    turns = Turns(given.turns, 0)
    while turns.wait():
        texts, seconds = transcribe(recordings)
        wer = 100 * jiwer.wer([row["text"] for row in rows], texts)
        turns.done({"clips": len(rows), "seconds": seconds, "wer": wer})


if __name__ == "__main__":
    main()
