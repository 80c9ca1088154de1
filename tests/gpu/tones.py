"""Prepared clips as long as those of read speech, of tones."""

from dataclasses import dataclass
from pathlib import Path

from tests.trainers.synthetic import write_corpus
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import prepare, run_in_process
from trainers.data.prepared_set import PreparedSet
from trainers.data.sources.known_sources import open_sources

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
# Seconds of each clip in turn, about as in read speech; 30 s are what the stock recipe of Whisper pads to.
DURATIONS_S = (2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 15.0, 3.0)
WORDS_PER_S = 2.5


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


def new_speech(folder: Path, clips: int, longest_s: float = max(DURATIONS_S)) -> Speech:
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
