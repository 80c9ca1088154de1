"""Looks at the recordings and transcripts of speech that was found: durations, languages, what cannot be read."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.recipes.clip_splits import TRAIN
from jobs.recipes.found_speech import ALL, FoundSpeech, FoundSplit, Tell
from jobs.recipes.text_language import language_of_texts, script_of_texts
from trainers.config.storage_location import StorageOptions
from trainers.data.audio import SAMPLING_RATE_HZ, decode
from trainers.errors import AudioError, ConfigError, DataError
from trainers.inspection.recordings import Recordings, read_recordings
from trainers.models.language_names import no_token, whisper_code

# Longest look at all recordings.
LOOK_S = 30.0
USUAL_PERCENTILE = 99.5
# Where no header has a length, so many recordings are decoded.
DECODED = 16
TEXTS_READ = 20_000

Row = dict[str, Any]


@dataclass(frozen=True)
class MeasuredSpeech:
    """Rows by split as `FoundSpeech` has them, without `unreadable` ones and the `without_text` whose text is empty.

    Durations are seconds, where known.
    """

    rows: Mapping[str, list[Row]]
    durations_s: np.ndarray
    unreadable: tuple[str, ...] = ()
    without_text: int = 0

    @property
    def usual_s(self) -> float | None:
        return float(np.percentile(self.durations_s, USUAL_PERCENTILE)) if len(self.durations_s) else None

    @property
    def longest_s(self) -> float | None:
        return float(self.durations_s.max()) if len(self.durations_s) else None

    def hours_of(self, clips: int) -> float:
        """Hours of so many clips, each as long as those are on average whose length is known; 0 where none is."""
        return clips * float(self.durations_s.mean()) / 3600 if len(self.durations_s) else 0.0


def measure(found: FoundSpeech, tell: Tell) -> MeasuredSpeech:
    """Reads headers of recordings, for half a minute at most.

    Raises:
        DataError: no recording that was looked at can be read, or no row has a text.
        StorageError: a bucket cannot be read.
    """
    deadline = time.monotonic() + LOOK_S
    rows: dict[str, list[Row]] = {}
    durations: list[np.ndarray] = []
    unreadable: dict[str, str] = {}
    checked = without_text = 0
    for name, split in found.splits.items():
        total = len(split.source.table)

        def progress(count: int, total: int = total) -> None:
            tell(f"{count:,} of {total:,} recordings looked at")

        known = read_recordings(split.source, StorageOptions(), deadline=deadline, progress=progress)
        checked += known.checked
        unreadable |= known.unreadable
        durations_s = known.durations_s[known.known]
        durations.append(durations_s if len(durations_s) else _decoded_s(split, known))
        table_rows = split.source.table.to_pylist()
        kept = [row for row in table_rows if row["id"] not in known.unreadable]
        with_text = [row for row in kept if row["text"].strip()]
        without_text += len(kept) - len(with_text)
        rows[name] = [{**row, "folder": _folder_of(row["audio"], found.root)} for row in with_text]
    told = tuple(f"{name}: {reason}" for name, reason in unreadable.items())
    if checked and len(unreadable) == checked:
        raise DataError(
            f"{found.place}: none of the {checked:,} recordings that were looked at can be read ({told[0]}): correct "
            "their paths, which count from the manifest's folder"
        )
    if not (rows.get(ALL) or rows.get(TRAIN)):
        if not without_text:
            raise DataError(f"{found.place}: no recording to train on can be read ({told[0]}): correct their paths")
        raise DataError(f"{found.place}: each transcript is empty: write into it what is said in its recording")
    # A test set without texts scores nothing; one is drawn instead.
    rows = {name: of_split for name, of_split in rows.items() if of_split}
    return MeasuredSpeech(rows, np.concatenate(durations), told, without_text)


def _folder_of(audio: str, root: str) -> str:
    """The folder of a recording, from the root on: it is the same wherever the data lies."""
    return audio.removeprefix(root).rpartition("/")[0]


def _decoded_s(split: FoundSplit, known: Recordings) -> np.ndarray:
    """Durations of some recordings whose headers do not have them."""
    rows = [row for row in split.source.table.slice(0, DECODED).to_pylist() if row["id"] not in known.unreadable]
    lengths_s = []
    for row, content in zip(rows, split.source.reader.read(rows), strict=True):
        if isinstance(content, AudioError) or row["offset_s"] is not None:
            continue
        try:
            lengths_s.append(len(decode(content, name=row["audio"])) / SAMPLING_RATE_HZ)
        except AudioError:
            continue
    return np.array(lengths_s, dtype=np.float64)


def language_of(rows: Sequence[Row], found: FoundSpeech, given: str | None) -> tuple[str, str]:
    """The language as a recipe names it, and how it is known.

    Raises:
        ConfigError: it is not known, or Whisper has no token for it.
    """
    language, known_by = _named_language(rows, found, given)
    if whisper_code(language) is None:
        named = "--language" if given is not None else f"{found.place}: language"
        raise ConfigError(
            f"{named} {language!r}: {no_token(language)} A language without one borrows another's: name that with "
            "--language, then set model.language and model.borrowed_language in the recipe"
        )
    return language, known_by


def _named_language(rows: Sequence[Row], found: FoundSpeech, given: str | None) -> tuple[str, str]:
    """What the user or the data says of the language, else the transcripts."""
    if given is not None:
        return given, "as --language has it"
    named = Counter(row["language"] for row in rows if row["language"])
    if named:
        language, count = named.most_common(1)[0]
        more = f"of {count:,} clips; {len(named)} languages in all" if len(named) > 1 else "by the data's own column"
        return language, more
    if found.language is not None:
        return found.language, "by the names of its clips"
    texts = [row["text"] for row in rows[:TEXTS_READ]]
    language = language_of_texts(texts)
    if language is None:
        raise ConfigError(
            f"{found.place}: its transcripts do not say which language they are in ({script_of_texts(texts)}; e.g. "
            f"{texts[0]!r}): name it, e.g. --language Serbian"
        )
    return language.capitalize(), "by its transcripts; --language says another"


def longest_text_bytes(rows: Iterable[Row]) -> int:
    """Bytes of the longest transcript, which has at most as many tokens."""
    return max(len(row["text"].encode()) for row in rows)
