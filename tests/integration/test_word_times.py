"""Half an hour of spoken digits, cut and transcribed by a model that knows the recordings: when each word is spoken."""

import csv
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

import rayscribe
from tests.trainers.synthetic import content, write_recording, write_rows
from trainers.data.audio import SAMPLING_RATE_HZ, decode, to_int16

RECORDINGS, DIGITS, GAP_S = 40, 5, 0.1
# Sentences that are trained on, each with as much silence around it as a cut at the pauses of the recording may leave.
SENTENCES, MOST_SILENCE_S, PAUSES_S = 640, 0.7, (1.2, 2.0)
# How far below its loudest moment a recording is silence at its edges, and how long a moment is: longer than a click,
# which one recording has 0.2 s before its word.
SILENCE_DB, MOMENT_S = 25.0, 0.03
TOLERANCE_S = 0.2


@dataclass(frozen=True)
class Sentence:
    """Digits one after another: samples (T,), and the first and last second of each word."""

    samples: np.ndarray
    words: list[tuple[str, float, float]]

    @property
    def text(self) -> str:
        return " ".join(word for word, _, _ in self.words)


def silence(duration_s: float) -> np.ndarray:
    return np.zeros(round(duration_s * SAMPLING_RATE_HZ), np.int16)


def heard(samples: np.ndarray) -> np.ndarray:
    """A recording (T,) without the silence before and behind what is said, which may be half a second."""
    moment = round(MOMENT_S * SAMPLING_RATE_HZ)
    power = np.convolve(np.square(samples.astype(np.float64)), np.ones(moment), mode="same")
    loud = np.flatnonzero(power > power.max() * 10 ** (-SILENCE_DB / 10))
    return samples[loud[0] : loud[-1] + 1]


@pytest.fixture(scope="module")
def digits(speech_data: Path) -> list[tuple[str, np.ndarray]]:
    """What is said in some recordings, and their samples."""
    folder = speech_data / "fsdd"
    with (folder / "train.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    paths = {folder / row["path"]: row["text"] for row in rows[:: len(rows) // RECORDINGS][:RECORDINGS]}
    return [(text, heard(to_int16(decode(path.read_bytes(), name=path.name)))) for path, text in paths.items()]


def sentence_of(digits: list[tuple[str, np.ndarray]], draws: np.random.Generator) -> Sentence:
    """Some in random order: who knows a sentence by its first word does not hear when the others are spoken."""
    parts: list[np.ndarray] = []
    words, place = [], 0
    for number in draws.choice(len(digits), DIGITS, replace=False):
        text, spoken = digits[number]
        words.append((text, place / SAMPLING_RATE_HZ, (place + len(spoken)) / SAMPLING_RATE_HZ))
        parts += [spoken, silence(GAP_S)]
        place += len(spoken) + len(parts[-1])
    return Sentence(np.concatenate(parts[:-1]), words)


@pytest.fixture(scope="module")
def run(digits: list[tuple[str, np.ndarray]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a CTC model that has learned these recordings by heart."""
    folder, draws, rows = tmp_path_factory.mktemp("digits"), np.random.default_rng(2), []
    for number in range(SENTENCES):
        sentence = sentence_of(digits, draws)
        before, after = (silence(duration_s) for duration_s in draws.uniform(0, MOST_SILENCE_S, 2))
        samples = np.concatenate([before, sentence.samples, after])
        path = write_recording(folder / "clips" / f"{number}.wav", samples)
        rows.append((str(path), sentence.text))
    train, validation = (str(write_rows(folder / f"{name}.csv", rows)) for name in ("train", "validation"))
    model = {"init": "scratch", "family": "ctc", "d_model": 96, "encoder_layers": 2, "attention_heads": 4}
    training = {"max_steps": 1000, "save_steps": 1000, "learning_rate": 2e-3, "warmup_steps": 40}
    recipe = folder / "digits.yaml"
    changes = {"data": {"train": train, "validation": validation}, "model": model}
    changes |= {"training": {**training, "per_device_train_batch_size": 8}, "run": {"storage_path": str(folder)}}
    recipe.write_text(yaml.safe_dump(content(changes)))
    result = rayscribe.train(recipe, {"run.name": "digits"}, ray=False)
    assert result.totals["wer"] < 3, result.headline
    return result.folder


@pytest.mark.long
def test_words_of_half_an_hour_are_there_and_have_their_times(
    run: str, digits: list[tuple[str, np.ndarray]], tmp_path: Path
) -> None:
    draws = np.random.default_rng(1)
    parts: list[np.ndarray] = []
    expected: list[tuple[str, float, float]] = []
    place = 0
    while place < 30 * 60 * SAMPLING_RATE_HZ:
        sentence = sentence_of(digits, draws)
        pause = silence(draws.uniform(*PAUSES_S))
        start_s = place / SAMPLING_RATE_HZ
        expected += [(word, start_s + start, start_s + end) for word, start, end in sentence.words]
        parts += [sentence.samples, pause]
        place += len(sentence.samples) + len(pause)
    soundfile.write(tmp_path / "long.flac", np.concatenate(parts), SAMPLING_RATE_HZ)
    (found,) = rayscribe.transcribe(run, tmp_path / "long.flac").transcripts
    assert len(found.segments) == len(expected) // DIGITS, "a pause was missed, or a sentence"
    words = [word for segment in found.segments for word in segment.words or ()]
    matcher = SequenceMatcher(None, [word for word, _, _ in expected], [word.text for word in words], autojunk=False)
    pairs = [
        (expected[block.a + offset], words[block.b + offset])
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    ]
    assert len(pairs) > 0.97 * len(expected), "words are lost"
    off_s = [max(abs(word.start_s - start_s), abs(word.end_s - end_s)) for (_, start_s, end_s), word in pairs]
    late = [pair for pair, off in zip(pairs, off_s, strict=True) if off > TOLERANCE_S]
    print(f"{len(pairs)} of {len(expected)}, off by {np.quantile(off_s, [0.5, 0.9, 0.99, 1]).round(3)}")
    assert len(late) < 0.02 * len(pairs), late[:5]
