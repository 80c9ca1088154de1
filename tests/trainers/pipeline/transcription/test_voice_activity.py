"""Where recorded speech is cut."""

import csv
from itertools import islice
from pathlib import Path

import numpy as np

from trainers.data.audio import SAMPLING_RATE_HZ, decode, to_int16
from trainers.pipeline.transcription.voice_activity import cut_recording


def test_digits_are_cut_at_each_pause_in_which_nothing_is_heard(speech_data: Path) -> None:
    folder, draws = speech_data / "fsdd", np.random.default_rng(1)
    with (folder / "train.csv").open(encoding="utf-8", newline="") as file:
        paths = [folder / row["path"] for row in islice(csv.DictReader(file), 60)]
    parts: list[np.ndarray] = []
    for path in paths:
        pause = np.zeros(round(draws.uniform(1.2, 2.0) * SAMPLING_RATE_HZ), np.int16)
        parts += [to_int16(decode(path.read_bytes(), name=path.name)), pause]
    found = cut_recording(np.concatenate(parts), 30.0, 0.5)
    assert len(found) == len(paths)
    starts = np.cumsum([0, *map(len, parts[:-1])])[::2]
    assert all(start <= place < end for (start, end), place in zip(found, starts, strict=True))
