"""Untouched Whisper weights are scored as transformers' own `generate` writes, utterance by utterance."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile
import soxr
import torch
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from tests.trainers.synthetic import RATE_HZ, config
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.storage import open_storage

# Word errors of stock `generate`, greedy, with Whisper's English normalizer, and the words of the reference.
WORD_ERRORS = {
    ("tiny.en", "librispeech_mini", "test"): (25, 150),
    ("tiny.en", "librispeech_mini", "validation"): (33, 266),
    ("tiny.en", "ljspeech_mini", "test"): (3, 50),
    ("tiny.en", "ljspeech_mini", "validation"): (0, 63),
    ("base", "librispeech_mini", "test"): (19, 150),
    ("base", "librispeech_mini", "validation"): (29, 266),
    ("base", "ljspeech_mini", "test"): (2, 50),
    ("base", "ljspeech_mini", "validation"): (0, 63),
}
MANIFESTS = {"train": "train.csv", "validation": "valid.csv", "test": "test.csv"}
CASES = [pytest.param(*case, marks=[] if number == 0 else pytest.mark.long) for number, case in enumerate(WORD_ERRORS)]


def stock_texts(weights: Path, manifest: Path) -> dict[str, str]:
    """The text of transformers' `generate`, of each recording alone, by path."""
    processor = WhisperProcessor.from_pretrained(weights)
    model = WhisperForConditionalGeneration.from_pretrained(weights)
    multilingual = vars(model.generation_config)["is_multilingual"]
    language: dict[str, Any] = {"language": "en"} if multilingual else {}
    texts = {}
    for row in csv.DictReader(manifest.open(encoding="utf-8")):
        samples, rate_hz = soundfile.read(manifest.parent / row["path"], dtype="float32")
        inputs = processor(soxr.resample(samples, rate_hz, RATE_HZ), sampling_rate=RATE_HZ, return_tensors="pt")
        with torch.inference_mode():
            tokens = model.generate(inputs.input_features, **language)
        texts[row["path"]] = processor.decode(tokens[0], skip_special_tokens=True).strip()
    return texts


@pytest.mark.integration
@pytest.mark.parametrize(("name", "corpus", "split"), CASES)
def test_scores_are_those_of_stock_generate(
    name: str, corpus: str, split: str, real_weights: Callable[[str], Path], speech_data: Path, tmp_path: Path
) -> None:
    folder = speech_data / corpus
    changes = {
        "run.storage_path": str(tmp_path),
        **{f"data.{each}": str(folder / name) for each, name in MANIFESTS.items()},
        "data.normalizer": "whisper_english",
        "data.max_duration_s": 30,
        "model": {"init": "pretrained", "name_or_path": str(real_weights(name)), "language": "English"},
    }
    result = evaluate(config(changes), LocalEngine(), model=str(real_weights(name)), split=split)
    lines = open_storage(result.folder).read_bytes(f"evaluation/{split}.jsonl").splitlines()
    ours = {line["id"]: line["hypothesis"] for line in map(json.loads, lines)}
    assert ours == stock_texts(real_weights(name), folder / MANIFESTS[split])
    errors = sum(result.totals[kind] for kind in ("insertions", "deletions", "substitutions"))
    assert (errors, result.totals["words"]) == WORD_ERRORS[name, corpus, split]
