"""Measures recordings and transcripts: durations, languages, unreadable recordings.

A language detector reads the texts.
"""

import contextlib
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]

from jobs.recipes.clip_splits import TRAIN
from jobs.recipes.found_speech import ALL, FoundSpeech, FoundSplit, Tell
from trainers.config.storage_location import StorageOptions
from trainers.data.audio import SAMPLING_RATE_HZ, decode
from trainers.errors import AudioError, ConfigError, DataError
from trainers.inspection.recordings import Recordings, read_recordings
from trainers.models.language_names import LANGUAGES, no_token, whisper_code

# Longest time for reading headers of recordings. Seconds.
LOOK_S = 30.0
USUAL_PERCENTILE = 99.5
TEXTS_READ = 20_000
# Number of recordings that are decoded if no header has a length.
DECODED = 16

Row = dict[str, Any]
# The detector classifies up to _PARTS parts of the texts with _PART_CHARACTERS or more each. It must find the same
# language in the share _AGREEING of them, with the probability _LEAST_PROBABILITY.
_PARTS, _PART_CHARACTERS, _AGREEING, _LEAST_PROBABILITY = 200, 100, 0.9, 0.9


@dataclass(frozen=True)
class MeasuredSpeech:
    """Rows by split as in `FoundSpeech`, except `unreadable` recordings and rows with an empty text.

    `without_text` is the number of rows with an empty text. `durations_s` has the known durations.
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
        """Returns the hours of `clips` clips of average length; 0 if no length is known."""
        return clips * float(self.durations_s.mean()) / 3600 if len(self.durations_s) else 0.0


def measure(found: FoundSpeech, tell: Tell) -> MeasuredSpeech:
    """Reads headers of recordings for at most LOOK_S seconds.

    Raises:
        DataError: none of the sampled recordings can be read, or no row has a text.
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
            tell(f"{count:,} of {total:,} recordings checked")

        known = read_recordings(split.source, StorageOptions(), deadline=deadline, progress=progress)
        checked += known.checked
        unreadable |= known.unreadable
        durations_s = known.durations_s[known.known]
        durations.append(durations_s if len(durations_s) else _decoded_s(split, known))
        table_rows = split.source.table.to_pylist()
        kept = [row for row in table_rows if row["id"] not in known.unreadable]
        with_text = [row for row in kept if row["text"].strip()]
        without_text += len(kept) - len(with_text)
        # Relative to the root, so that it does not depend on the data's location.
        folders = [row["audio"].removeprefix(found.root).rpartition("/")[0] for row in with_text]
        rows[name] = [{**row, "folder": folder} for row, folder in zip(with_text, folders, strict=True)]
    told = tuple(f"{name}: {reason}" for name, reason in unreadable.items())
    if checked and len(unreadable) == checked:
        raise DataError(
            f"{found.place}: none of the {checked:,} checked recordings can be read ({told[0]}): correct their paths, "
            "which are relative to the manifest's folder"
        )
    if not (rows.get(ALL) or rows.get(TRAIN)):
        if not without_text:
            raise DataError(f"{found.place}: no recording to train on can be read ({told[0]}): correct their paths")
        raise DataError(f"{found.place}: each transcript is empty: write to each the words of its recording")
    # A test set without texts cannot be scored; another is drawn instead.
    rows = {name: of_split for name, of_split in rows.items() if of_split}
    return MeasuredSpeech(rows, np.concatenate(durations), told, without_text)


def _decoded_s(split: FoundSplit, known: Recordings) -> np.ndarray:
    """Returns durations of some recordings whose headers do not have them."""
    rows = [row for row in split.source.table.slice(0, DECODED).to_pylist() if row["id"] not in known.unreadable]
    lengths_s = []
    for row, content in zip(rows, split.source.reader.read(rows), strict=True):
        if not isinstance(content, AudioError) and row["offset_s"] is None:
            with contextlib.suppress(AudioError):
                lengths_s.append(len(decode(content, name=row["audio"])) / SAMPLING_RATE_HZ)
    return np.array(lengths_s, dtype=np.float64)


def language_of(rows: Sequence[Row], found: FoundSpeech, given: str | None) -> tuple[str, str]:
    """Returns the language for a recipe, and its source as text: the user, the data or the transcripts.

    Raises:
        ConfigError: the language is not known, or Whisper has no token for it.
    """
    language, known_by = _known_language(rows, found, given)
    if whisper_code(language) is None:
        named = "--language" if given is not None else f"{found.place}: language"
        raise ConfigError(
            f"{named} {language!r}: {no_token(language)} To use the token of another language, name that with "
            "--language, then set model.language and model.borrowed_language in the recipe"
        )
    return language, known_by


def _known_language(rows: Sequence[Row], found: FoundSpeech, given: str | None) -> tuple[str, str]:
    if given is not None:
        return given, "by --language"
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
            f"{found.place}: the language of its transcripts cannot be detected ({script_of_texts(texts)}; e.g. "
            f"{texts[0]!r}): name it, e.g. --language Serbian"
        )
    return language.capitalize(), "by its transcripts; --language overrides it"


def longest_text_bytes(rows: Iterable[Row]) -> int:
    """Returns the bytes of the longest transcript, which has at most as many tokens."""
    return max(len(row["text"].encode()) for row in rows)


def language_of_texts(texts: Iterable[str]) -> str | None:
    """Returns Whisper's name of the texts' language; None if it cannot be detected, or has no token."""
    parts = [""]
    for text in texts:
        if len(parts[-1]) >= _PART_CHARACTERS:
            if len(parts) == _PARTS:
                break
            parts.append("")
        parts[-1] += f" {text.lower()}"
    if len(parts) > 1 and len(parts[-1]) < _PART_CHARACTERS:
        parts.pop()
    found = Counter(_detector().classify(part)[0] for part in parts)
    (language, count), *_ = found.most_common(1)
    return LANGUAGES.get(language) if count >= _AGREEING * len(parts) else None


@cache
def _detector() -> Any:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=_LEAST_PROBABILITY)


def script_of_texts(texts: Iterable[str]) -> str:
    """Returns the most frequent script, e.g. `Latin`, and the number of different letters, for messages."""
    letters = Counter(letter for text in texts for letter in text.lower() if letter.isalpha())
    scripts = Counter(unicodedata.name(letter, "UNKNOWN").split(" ")[0].capitalize() for letter in letters.elements())
    return f"{scripts.most_common(1)[0][0]}, {len(letters)} letters" if scripts else "no letters"
