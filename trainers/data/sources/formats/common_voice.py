"""Reads Common Voice as Mozilla distributes it: a folder of one language with clips, and a TSV for each split."""

import posixpath
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from trainers.data.sources.archives.source_files import SourceFiles
from trainers.data.sources.data_source import SLICE, table_of
from trainers.data.sources.manifest_fields import Row, decode, delimited_rows, to_seconds
from trainers.errors import DataError

CLIPS, DURATIONS = "clips", "clip_durations.tsv"
# Mozilla's names of the splits.
SPLIT_FILES = {"train": "train", "validation": "dev", "test": "test"}
# Columns of clip, text and speaker, in releases of all years.
AUDIO, SENTENCE, SPEAKER = "path", "sentence", "client_id"
# Columns with self-reported properties of speakers.
SLICES = ("accents", "accent", "variant", "age", "gender")
# Columns of durations in milliseconds, of which each release has one.
MILLISECONDS = ("duration[ms]", "duration")
# Suffix of clips in the first releases, whose tables leave it out.
EXTENSION = ".mp3"
TABLE = ".tsv"

# A row of a clip: its columns of ROW_SCHEMA, and slices that have a value.
Clip = Mapping[str, Any]


@dataclass(frozen=True)
class CommonVoice:
    """A folder of one language, at a path, at a URL or in an archive.

    Attributes:
        folder: Its path or URL.
        files: Reads its files.
        contents: Content of each file that was read, by name.
        left_out: Numbers of clips that `clips` left out, by reason.
    """

    folder: str
    files: SourceFiles
    contents: dict[str, bytes] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def clips(self, tables: Sequence[str], *, accented_letters: bool) -> list[Clip]:
        """Returns the clips of tables such as train and other, each once, in their order.

        For `accented_letters` see `cleaned`. Raises DataError if a table is missing, or is not one of Common Voice.
        """
        durations_s = self._durations_s()
        found: dict[str, Clip] = {}
        for table in tables:
            for _, (path, sentence, speaker, *slices) in self._rows(table, (AUDIO, SENTENCE), (SPEAKER, *SLICES))[1]:
                file, text = self._file(path), cleaned(sentence, accented_letters=accented_letters)
                if file in found and text not in ("", found[file]["text"]):
                    raise DataError(
                        f"{self.folder}/{table}.tsv: the clip {file} has two sentences, {found[file]['text']!r} and "
                        f"{text!r}: keep the one that is meant"
                    )
                if file in found:
                    self.left_out["in several of the tables, taken once"] += 1
                elif not text:
                    self.left_out["without a sentence, left out"] += 1
                else:
                    found[file] = {
                        **{f"{SLICE}{name}": value for name, value in zip(SLICES, slices, strict=True) if value},
                        "id": posixpath.splitext(file)[0],
                        "audio": f"{self.folder}/{CLIPS}/{file}",
                        "text": text,
                        "speaker": speaker or None,
                        "duration_s": durations_s.get(file),
                    }
        return list(found.values())

    def _file(self, path: str) -> str:
        if not path or "/" in path or path.startswith("."):
            raise DataError(f"{self.folder}: a table names the clip {path!r}, which is not a file name in {CLIPS}/")
        return path if posixpath.splitext(path)[1] else path + EXTENSION

    def _durations_s(self) -> dict[str, float]:
        if self._content(DURATIONS) is None:
            return {}
        header, rows = self._rows(DURATIONS.removesuffix(TABLE), ("clip",), MILLISECONDS)
        if not set(MILLISECONDS).intersection(header):
            return {}
        try:
            return {clip: to_seconds(one or other) / 1000 for _, (clip, one, other) in rows}
        except ValueError as error:
            raise DataError(f"{self.folder}/{DURATIONS}: {error}: a duration is a number of milliseconds") from None

    def _rows(self, table: str, required: Sequence[str], others: Sequence[str]) -> tuple[Sequence[str], Iterator[Row]]:
        """Returns the header of a table, and the values of columns in its rows."""
        where, content = f"{self.folder}/{table}{TABLE}", self._content(f"{table}{TABLE}")
        if content is None:
            raise DataError(
                f"{where}: no such table: name the folder of one language of Common Voice, which also has {CLIPS}/"
            )
        header, rows = delimited_rows(where, decode(where, content), "\t", (*required, *others))
        if missing := [column for column in required if column not in header]:
            raise DataError(f"{where}: no column {missing[0]!r} among {', '.join(header)}: use Common Voice's TSV")
        return header, rows

    def _content(self, name: str) -> bytes | None:
        if name not in self.contents and (content := self.files.read(f"{self.folder}/{name}")) is not None:
            self.contents[name] = content
        return self.contents.get(name)


def table_of_clips(clips: Sequence[Clip]) -> pa.Table:
    """Returns a table of ROW_SCHEMA and slices."""
    table = table_of(clips)
    for name in (f"{SLICE}{each}" for each in SLICES):
        if any(values := [clip.get(name) for clip in clips]):
            table = table.append_column(name, pa.array(values, pa.string()))
    return table


def cleaned(sentence: str, *, accented_letters: bool) -> str:
    """Returns a sentence with single spaces, and with plain Latin letters unless it keeps `accented_letters`.

    Marks in other scripts are kept, since they are vowels there, or form different letters.
    """
    text = " ".join(sentence.split())
    if accented_letters:
        return text
    kept, is_latin = [], False
    for character in unicodedata.normalize("NFD", text):
        if not unicodedata.combining(character):
            is_latin = unicodedata.name(character, "").startswith("LATIN")
        elif is_latin:
            continue
        kept.append(character)
    return unicodedata.normalize("NFC", "".join(kept))
