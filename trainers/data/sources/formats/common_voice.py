"""Common Voice as Mozilla ships it: a folder of one language with a TSV for each split, next to its clips."""

import csv
import io
import posixpath
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import pyarrow as pa

from trainers.config.wording import counted
from trainers.data.sources.data_source import SLICE, table_of
from trainers.data.sources.manifest_fields import to_seconds
from trainers.errors import DataError

CLIPS, DURATIONS = "clips", "clip_durations.tsv"
# What Mozilla calls them.
SPLIT_FILES = {"train": "train", "validation": "dev", "test": "test"}
# Columns of a clip, of its text and of who speaks, in releases of all years.
AUDIO, SENTENCE, SPEAKER = "path", "sentence", "client_id"
# What speakers have said of themselves.
SLICES = ("accents", "accent", "variant", "age", "gender")
# Of the first releases, whose tables name clips without it.
EXTENSION = ".mp3"

Read = Callable[[str], bytes | None]


@dataclass(frozen=True)
class Clip:
    """One row: the clip's file name, its sentence and its speaker; its duration in seconds where that is known.

    `slices` are those of SLICES that have a value.
    """

    file: str
    text: str
    speaker: str
    duration_s: float | None
    slices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rules:
    """What is done to the rows of a split.

    Attributes:
        accented_letters: False: Latin letters lose their accents, as in SpeechBrain's recipe by default.
        max_characters: Clips with longer sentences are left out. None: none are.
    """

    accented_letters: bool = True
    max_characters: int | None = None


@dataclass
class Counts:
    """What was left out of a split, in clips; `kept` are the others."""

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    repeated: int = 0
    of_other_speakers: int = 0

    def lines(self) -> Iterator[str]:
        """What to tell of it, for each reason that has clips."""
        told = {
            "empty": "without a sentence, left out",
            "too_long": "with a longer sentence than --max-characters, left out",
            "repeated": "in several of the tables, taken once",
            "of_other_speakers": "of speakers of a held-out split, left out",
        }
        for each in fields(self):
            if (count := getattr(self, each.name)) and each.name in told:
                yield f"{counted(count, 'clip')} {told[each.name]}"


@dataclass(frozen=True)
class CommonVoice:
    """A folder of one language.

    Attributes:
        folder: Its path or URL.
        read: Gives the bytes of a file in it by name; None where there is none.
        contents: Bytes of each file that was read, by name.
    """

    folder: str
    read: Read
    contents: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def in_folder(cls, folder: str, read: Read) -> Self:
        return cls(folder.rstrip("/"), read)

    def clips(self, tables: Sequence[str], rules: Rules, counts: Counts) -> list[Clip]:
        """The clips of tables such as train and other, each once, in their order.

        Raises:
            DataError: a table is missing, or is none of Common Voice's.
        """
        durations_s = self._durations_s()
        found: dict[str, Clip] = {}
        for table in tables:
            for row in self._rows(f"{table}.tsv", (AUDIO, SENTENCE)):
                file = self._file(row[AUDIO])
                text = cleaned(row[SENTENCE], rules)
                if file in found and text not in ("", found[file].text):
                    raise DataError(
                        f"{self.folder}/{table}.tsv: the clip {file} has two sentences, {found[file].text!r} and "
                        f"{text!r}: keep the one that is meant"
                    )
                if file in found:
                    counts.repeated += 1
                elif not text:
                    counts.empty += 1
                elif rules.max_characters is not None and len(text) > rules.max_characters:
                    counts.too_long += 1
                else:
                    slices = {name: row[name] for name in SLICES if row.get(name)}
                    found[file] = Clip(file, text, row.get(SPEAKER, ""), durations_s.get(file), slices)
        counts.kept = len(found)
        return list(found.values())

    def rows(self, clips: Sequence[Clip]) -> pa.Table:
        """A table of ROW_SCHEMA and slices."""
        base = f"{self.folder}/{CLIPS}"
        table = table_of(
            {
                "id": posixpath.splitext(clip.file)[0],
                "audio": f"{base}/{clip.file}",
                "text": clip.text,
                "speaker": clip.speaker or None,
                "duration_s": clip.duration_s,
            }
            for clip in clips
        )
        for name in SLICES:
            values = [clip.slices.get(name) for clip in clips]
            if any(values):
                table = table.append_column(f"{SLICE}{name}", pa.array(values, pa.string()))
        return table

    def _file(self, path: str) -> str:
        if not path or "/" in path or path.startswith("."):
            raise DataError(f"{self.folder}: a table names the clip {path!r}, which is no name of a file in {CLIPS}/")
        return path if posixpath.splitext(path)[1] else path + EXTENSION

    def _durations_s(self) -> dict[str, float]:
        if self._content(DURATIONS) is None:
            return {}
        # The second column has been called duration[ms] and more.
        rows = list(self._rows(DURATIONS, ("clip",)))
        column = next((name for name in (rows[0] if rows else {}) if name.startswith("duration")), None)
        if column is None:
            return {}
        try:
            return {row["clip"]: to_seconds(row[column]) / 1000 for row in rows}
        except ValueError as error:
            raise DataError(f"{self.folder}/{DURATIONS}: {error}: a duration is a number of milliseconds") from None

    def _rows(self, name: str, wanted: Sequence[str]) -> Iterator[Mapping[str, str]]:
        where, content = f"{self.folder}/{name}", self._content(name)
        if content is None:
            raise DataError(
                f"{where}: no such table: name the folder of one language of Common Voice, in which {CLIPS}/ lies too"
            )
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise DataError(f"{where}: line {line} is not UTF-8: fetch the table again, or set data.encoding") from None
        # Its sentences have quotes that nothing closes.
        reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
        header = next(reader, [])
        if missing := [column for column in wanted if column not in header]:
            raise DataError(f"{where}: no column {missing[0]!r} among {', '.join(header)}: is it Common Voice's?")
        for values in _lines(where, reader):
            if len(values) != len(header):
                raise DataError(
                    f"{where}: line {reader.line_num} has {len(values)} fields where the header has {len(header)}: "
                    "fetch the table again"
                )
            yield dict(zip(header, values, strict=True))

    def _content(self, name: str) -> bytes | None:
        if name not in self.contents and (content := self.read(name)) is not None:
            self.contents[name] = content
        return self.contents.get(name)


def _lines(where: str, reader: Any) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise DataError(f"{where}: line {reader.line_num}: {error}: fetch the table again") from None


def cleaned(sentence: str, rules: Rules) -> str:
    """A sentence without spaces around it, and where accents are not kept, with plain Latin letters.

    Marks of other scripts stay: there they are vowels, or make another letter.
    """
    text = " ".join(sentence.split())
    if rules.accented_letters:
        return text
    kept, is_latin = [], False
    for character in unicodedata.normalize("NFD", text):
        if not unicodedata.combining(character):
            is_latin = unicodedata.name(character, "").startswith("LATIN")
        elif is_latin:
            continue
        kept.append(character)
    return unicodedata.normalize("NFC", "".join(kept))


def without_speakers(clips: Sequence[Clip], held_out: Sequence[Clip], counts: Counts) -> list[Clip]:
    """Clips whose speakers are not those of others."""
    speakers = {clip.speaker for clip in held_out if clip.speaker}
    kept = [clip for clip in clips if clip.speaker not in speakers]
    counts.of_other_speakers = len(clips) - len(kept)
    counts.kept = len(kept)
    return kept


def shared_sentences(splits: Mapping[str, Sequence[Clip]]) -> dict[tuple[str, str], int]:
    """How many different sentences each two splits have in common; pairs without any are left out."""
    texts = {name: Counter(clip.text for clip in clips) for name, clips in splits.items()}
    names = list(texts)
    pairs = ((one, other) for number, one in enumerate(names) for other in names[number + 1 :])
    found = {pair: len(texts[pair[0]].keys() & texts[pair[1]].keys()) for pair in pairs}
    return {pair: count for pair, count in found.items() if count}
