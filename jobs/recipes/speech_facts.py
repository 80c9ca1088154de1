"""Measures recordings and transcripts that were found: durations, languages, unreadable recordings.

The language of texts is recognized by their script or their most frequent words, and by a detector.
"""

import contextlib
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import py3langid  # type: ignore[import-untyped]

from jobs.recipes.clip_splits import TRAIN
from jobs.recipes.found_speech import ALL, FoundSpeech, FoundSplit, Tell
from trainers.config.storage_location import StorageOptions
from trainers.data.audio import SAMPLING_RATE_HZ, decode
from trainers.errors import AudioError, ConfigError, DataError
from trainers.inspection.recordings import Recordings, read_recordings
from trainers.models.language_names import code_or_name, no_token, whisper_code

# Longest time for reading headers of recordings. Seconds.
LOOK_S = 30.0
USUAL_PERCENTILE = 99.5
# Number of recordings that are decoded if no header has a length.
DECODED = 16
TEXTS_READ = 20_000

Row = dict[str, Any]
_UNTOLD = ""
# Scripts, by the prefix of Unicode's letter names, that usually only one of Whisper's languages is written in.
_BY_SCRIPT: Mapping[str, str] = {
    "ARMENIAN": "armenian",
    "BENGALI": "bengali",
    "GEORGIAN": "georgian",
    "GREEK": "greek",
    "GUJARATI": "gujarati",
    "GURMUKHI": "punjabi",
    "HANGUL": "korean",
    "HIRAGANA": "japanese",
    "KANNADA": "kannada",
    "KATAKANA": "japanese",
    "KHMER": "khmer",
    "LAO": "lao",
    "MALAYALAM": "malayalam",
    "MYANMAR": "myanmar",
    "SINHALA": "sinhala",
    "TAMIL": "tamil",
    "TELUGU": "telugu",
    "THAI": "thai",
}
# Function words, which make up a quarter of any text and more; few are shared by two of these languages.
_WORDS: Mapping[str, str] = {
    "afrikaans": "die en van het nie is in wat dit sy om met was hulle ek",
    "bulgarian": "и на да се в не че за от си това са е по като",
    "catalan": "i el la de que els en no es amb per una les un del",
    "czech": "a je se že na to v jsem ale jako by když jsou ve si být",
    "danish": "og i at det er en på til af den som jeg ikke med har",
    "dutch": "de het een en van ik te dat niet zijn voor met hij op maar",
    "english": "the and of to a in is that it was for he with you on have this",
    "estonian": "ja on ei et see oli ta ma kui ka mis siis aga seda",
    "finnish": "ja on ei se että oli hän ovat mutta kuin joka niin mitä olen",
    "french": "le la les de et des est une dans que pas pour je il vous qui sur",
    "galician": "o de que e a non unha un para con os do da en por",
    "german": "der die und das ist nicht ein zu ich sie mit den auf eine es dem",
    "hungarian": "a az és hogy nem egy is van volt de meg csak ez mint",
    "indonesian": "yang dan di ini itu tidak dengan untuk dari dalam akan pada ke ada",
    "italian": "il di che la e un per non è sono una con del gli ho mi",
    "norwegian": "og i det er på som en til å jeg ikke med for av har",
    "polish": "i w nie na się jest to że z do jak ale o co po przez",
    "portuguese": "o de que e não um uma para com os do da em por mais eu",
    "romanian": "și de la nu în că cu pe o un este mai din să pentru",
    "russian": "и в не на что он с как я это но по а все она так",
    "slovak": "a je sa na že to v som ale ako by keď si nie čo pre",
    "slovenian": "in je se da na v ne so ki za bi pa s kot ni bilo",
    "spanish": "de la que el en y los no un por las se con una es para",
    "swedish": "och det att är som en på inte jag för med av den har ett",
    "turkish": "ve bir bu için da de ne çok ben ama daha gibi var mı",
    "ukrainian": "і в не на що він з як я це але та у до її було",
    "vietnamese": "và là của không có được cho một những với người các này trong",
    # These are not told apart: Bosnian, Croatian, Serbian and Macedonian, in both scripts.
    _UNTOLD: "i je u se da na što sam su ne za ali kao bi od и је у се да на што сам су не за али као би од",
}
_LEAST_SHARE, _LEAD, _LEAST_WORDS = 0.15, 1.25, 4
_LETTERS = re.compile(r"[^\W\d_]+")
# A detector classifies up to _PARTS parts of the texts, of _PART_CHARACTERS or more each; the share _AGREEING must
# agree.
_PARTS, _PART_CHARACTERS, _AGREEING = 200, 100, 0.9


@dataclass(frozen=True)
class MeasuredSpeech:
    """Rows by split as in `FoundSpeech`, without `unreadable` ones and the `without_text` rows whose text is empty.

    Durations are in seconds, of the clips for which they are known.
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
    """Reads headers of recordings, for half a minute at most.

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
    # A test set without texts cannot be scored; another one is drawn instead.
    rows = {name: of_split for name, of_split in rows.items() if of_split}
    return MeasuredSpeech(rows, np.concatenate(durations), told, without_text)


def _folder_of(audio: str, root: str) -> str:
    """Returns the folder of a recording relative to the root, which is the same wherever the data lies."""
    return audio.removeprefix(root).rpartition("/")[0]


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
    """Returns the language as a recipe names it, and how it is known: by user or data, else by the transcripts.

    Raises:
        ConfigError: it is not known, or Whisper has no token for it.
    """
    language, known_by = _known_language(rows, found, given)
    if whisper_code(language) is None:
        named = "--language" if given is not None else f"{found.place}: language"
        raise ConfigError(
            f"{named} {language!r}: {no_token(language)} A language without one borrows another's: name that with "
            "--language, then set model.language and model.borrowed_language in the recipe"
        )
    return language, known_by


def _known_language(rows: Sequence[Row], found: FoundSpeech, given: str | None) -> tuple[str, str]:
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
    """Returns the bytes of the longest transcript, which has at most as many tokens."""
    return max(len(row["text"].encode()) for row in rows)


def language_of_texts(texts: Iterable[str]) -> str | None:
    """Returns Whisper's name of the texts' language; None if it cannot be recognized.

    Words and scripts tell dissimilar languages apart, and recognize a text that is in none of them; a detector always
    names a language, and tells similar ones apart: Bengali and Assamese, Indonesian and Malay.
    """
    texts = [*texts]
    language = _by_script_or_words(texts)
    return language if language is not None and _detector_agrees(texts, language) else None


def _detector_agrees(texts: Sequence[str], language: str) -> bool:
    parts = [""]
    for text in texts:
        if len(parts[-1]) >= _PART_CHARACTERS:
            if len(parts) == _PARTS:
                break
            parts.append("")
        parts[-1] += f" {text.lower()}"
    if len(parts) > 1 and len(parts[-1]) < _PART_CHARACTERS:
        parts.pop()
    agreeing = sum(code_or_name(py3langid.classify(part)[0]) == code_or_name(language) for part in parts)
    return agreeing >= _AGREEING * len(parts)


def _by_script_or_words(texts: Iterable[str]) -> str | None:
    scripts, words = Counter[str](), Counter[str]()
    for text in texts:
        words.update(_LETTERS.findall(text.lower()))
        scripts.update(unicodedata.name(letter, "").partition(" ")[0] for letter in text if letter.isalpha())
    by_script = Counter({_BY_SCRIPT[script]: count for script, count in scripts.items() if script in _BY_SCRIPT})
    if by_script:
        language, count = by_script.most_common(1)[0]
        # Japanese has more kanji than kana.
        return language if count > scripts.total() * (0.2 if language == "japanese" else 0.5) else None
    shares = Counter({language: sum(words[word] for word in known.split()) for language, known in _WORDS.items()})
    (language, count), (_, second) = shares.most_common(2)
    different = sum(words[word] > 0 for word in _WORDS[language].split())
    is_told = different >= _LEAST_WORDS and count > _LEAST_SHARE * words.total() and count > _LEAD * second
    return (language or None) if is_told else None


def script_of_texts(texts: Iterable[str]) -> str:
    """Returns the most frequent script, e.g. `Latin`, and the number of different letters, for messages."""
    letters = Counter(letter for text in texts for letter in text.lower() if letter.isalpha())
    scripts = Counter(unicodedata.name(letter, "UNKNOWN").split(" ")[0].capitalize() for letter in letters.elements())
    return f"{scripts.most_common(1)[0][0]}, {len(letters)} letters" if scripts else "no letters"
