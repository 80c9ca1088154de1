"""Reads tables of recordings and transcripts, of several formats, into one Arrow table."""

import difflib
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_part import DataPart, Quoting
from trainers.data.sources.data_source import ROW_SCHEMA, SLICE, with_all_offsets
from trainers.data.sources.manifest_fields import (
    AUDIO_COLUMNS,
    TEXT_COLUMNS,
    Row,
    absolute,
    base_of,
    checked_ids,
    decode,
    delimited_rows,
    json_rows,
    refuse_missing_header,
    refuse_unread,
    separator_of,
    to_seconds,
    usual_column,
)
from trainers.errors import AudioError, DataError

# Columns that are read if they exist.
_OPTIONAL = ("id", "speaker", "duration", "language", "offset")

_CHUNK_ROWS = 65_536
# A name that no column has.
_NO_COLUMN = "\0"

# Tolerance of a segment's end, since offset and duration are rounded separately.
_SEGMENT_SLACK_S = 0.25

_OR_IGNORE = "take the column out, or name it in data.ignore_columns where recordings were cut already"
# Other names of the two required columns.
_USUAL_NAMES = {"data.audio_column_name": AUDIO_COLUMNS, "data.text_column_name": TEXT_COLUMNS}


@dataclass(frozen=True)
class TableRules:
    """The columns of tables that are read: the fields of the data part of the same names.

    `text_column_name` is None if recordings have no transcripts; `slice_columns` are read if they exist.
    """

    audio_column_name: str = "path"
    text_column_name: str | None = "text"
    use_languages: bool = True
    slice_columns: Sequence[str] = ()
    ignore_columns: Sequence[str] = ()

    @classmethod
    def of(cls, data: DataPart, split: str) -> Self:
        """Returns the rules for a split of a config."""
        return cls(
            data.audio_column_name,
            data.text_column_name,
            data.use_language_column is not False,
            () if split == "train" else data.slice_columns,
            data.ignore_columns,
        )

    @classmethod
    def of_recordings(cls, data: DataPart) -> Self:
        """Returns the rules for recordings without transcripts."""
        return cls(data.audio_column_name, None, use_languages=False, ignore_columns=data.ignore_columns)

    @property
    def ignored_of_wanted(self) -> set[str]:
        """Columns that are ignored, but would be read otherwise."""
        return {*_OPTIONAL, *self.slice_columns}.intersection(self.ignore_columns)

    @property
    def wanted(self) -> list[str]:
        """Columns whose values a `ParsedTable` has, in this order."""
        names = [self.audio_column_name, self.text_column_name or _NO_COLUMN, *_OPTIONAL, *self.slice_columns]
        return [_NO_COLUMN if name in self.ignore_columns else name for name in names]


@dataclass(frozen=True)
class ParsedTable:
    """A table of recordings, in any format.

    Attributes:
        location: Its path or URL; relative paths of recordings are relative to its folder.
        columns: Names of all its columns.
        rows: The values of the columns `TableRules.wanted`, each row with its number.
        unit: The unit of the numbers, such as "line".
        holds_recordings: True if recordings are in the table itself, so that their paths are only names.
    """

    location: str
    columns: Collection[str]
    rows: Iterable[Row]
    unit: str = "line"
    holds_recordings: bool = False


@dataclass(frozen=True)
class Manifest:
    """The rows that were read from manifests.

    Attributes:
        location: The file that represents all files in messages; recordings in a bucket are below its folder.
        content: Bytes that determine the rows.
        table: Columns of ROW_SCHEMA and slices; recordings may be in archives, see `archive_path`.
        columns: Names of the columns of recordings and of transcripts.
        warnings: Messages to the user about the rows.
        problems: Reasons why rows have no recording, by id.
    """

    location: str
    content: bytes
    table: pa.Table
    columns: tuple[str, str | None]
    warnings: Sequence[str] = ()
    problems: Mapping[str, str] = field(default_factory=dict)


def read_manifest(
    location: str,
    content: bytes,
    rules: TableRules | None = None,
    *,
    quoting: Quoting = "csv",
    delimiter: str | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> pa.Table:
    """Reads a manifest, see `parse_table` and `join_tables`, whose errors it raises."""
    rules = rules or TableRules()
    return join_tables([parse_table(location, content, rules, quoting=quoting, delimiter=delimiter)], rules, warn)


def parse_table(
    location: str, content: bytes, rules: TableRules, *, quoting: Quoting = "csv", delimiter: str | None = None
) -> ParsedTable:
    """Parses a table of text, whose extension (.csv, .tsv, .jsonl, .ndjson, .json) determines the format.

    CSV is RFC 4180 (quotes are doubled inside quotes) unless `quoting` is none, with a delimiter derived from its
    header if none is given. TSV has no quoting: a transcript may start with a quote. JSON has one object per line; a
    .json may be a list of objects. Text is UTF-8, with or without a byte order mark. Raises DataError if the table
    cannot be parsed; the message names the line and the fix. Errors in rows are raised in iteration.
    """
    text, suffix = decode(location, content), posixpath.splitext(location)[1].lower()
    if suffix in (".csv", ".tsv"):
        delimiter = delimiter or (separator_of(text) if suffix == ".csv" else "\t")
        return ParsedTable(location, *delimited_rows(location, text, delimiter, rules.wanted, quoting=quoting))
    if suffix in (".jsonl", ".ndjson", ".json"):
        return ParsedTable(location, *json_rows(location, text, rules.wanted))
    raise DataError(f"{location}: the extension {suffix!r} is not a manifest's: name it .csv, .tsv or .jsonl")


def join_tables(
    tables: Sequence[ParsedTable], rules: TableRules, warn: Callable[[str], None] = lambda _: None
) -> pa.Table:
    """Checks and joins the rows of tables.

    Besides audio and transcript, only the columns `id`, `speaker`, `duration` (seconds), `language` and `offset`
    (seconds), and slices, are read if they exist. Other columns that select a part of a recording are refused. Names
    are case-sensitive: the column `Language` is refused, and `Speaker` causes a warning. Empty transcripts are kept.

    If a row has an `offset`, rows are segments, as in NeMo: `duration` seconds from `offset`, which is 0 if left out;
    without a duration, everything from the offset.

    `warn` is called with a line for each column that is not read but has the name of one that is, in another case.

    Returns:
        A table of ROW_SCHEMA and slices, in the order of the tables: `row` counts from 0; `id` is the column `id`, or
            else the audio path as given, with #2, #3 added to repeated ones; `audio` is an absolute path or URL;
            `offset_s` is null if the rows are complete recordings.

    Raises:
        DataError: The tables cannot be used; the message names the line and the fix.
    """
    chunks, all_have_ids = [], True
    for table in tables:
        columns = [name for name in table.columns if name not in rules.ignore_columns]
        require_column(table.location, columns, rules.audio_column_name, "data.audio_column_name")
        if rules.text_column_name is not None:
            require_column(table.location, columns, rules.text_column_name, "data.text_column_name")
        refuse_unread(table.location, columns, (rules.audio_column_name, rules.text_column_name), _OR_IGNORE)
        _tell_misspelled(table.location, columns, rules, warn)
        has_ids, rows = "id" in columns, iter(table.rows)
        all_have_ids &= has_ids
        while chunk := list(islice(rows, _CHUNK_ROWS)):
            chunks.append(_chunk_table(table, chunk, rules, has_ids=has_ids))
    location = tables[0].location
    if not chunks:
        raise DataError(f"{location}: no rows: add one line for each recording")
    joined = pa.concat_tables(chunks)
    ids = checked_ids(location, joined["id"]) if all_have_ids else ids_of_paths(joined["id"])
    joined = joined.set_column(0, "id", ids).add_column(0, "row", pa.array(range(len(joined)), pa.int64()))
    slices = (pa.field(f"{SLICE}{name}", pa.string()) for name in rules.slice_columns)
    return with_all_offsets(joined.cast(pa.schema([*ROW_SCHEMA, *slices])))


def segment(samples: np.ndarray, rate_hz: int, offset_s: float, duration_s: float | None) -> np.ndarray:
    """Returns the samples (S,), S > 0, of a segment of a recording (T,); without a duration, all from `offset_s` on.

    Consecutive segments share no sample and miss none. Raises AudioError if the recording ends before the segment does,
    or the segment is empty.
    """
    length_s = len(samples) / rate_hz
    end_s = length_s if duration_s is None else offset_s + duration_s
    if end_s > length_s + _SEGMENT_SLACK_S or offset_s >= length_s:
        raise AudioError(f"is {length_s:.2f} s long, and ends before the segment of {offset_s:g} to {end_s:g} s does")
    part = samples[round(offset_s * rate_hz) : round(end_s * rate_hz)]
    if not len(part):
        raise AudioError(f"the segment at {offset_s:g} s has a duration of {duration_s or 0:g} s")
    return part


def _tell_misspelled(location: str, columns: Collection[str], rules: TableRules, warn: Callable[[str], None]) -> None:
    """Warns of columns whose names differ from those that are read only in case and spaces.

    Raises DataError for a column of the clips' languages, which change the training.
    """
    wanted = rules.wanted
    by_folded = {name.casefold(): name for name in wanted}
    for name in dict.fromkeys(columns):
        meant = by_folded.get(name.strip().casefold())
        if meant is None or name in wanted:
            continue
        text = f"{location}: the column {name!r} is not read"
        if meant == "language" and rules.use_languages and meant not in columns:
            raise DataError(
                f"{text}: rename it to 'language', or leave it out with --set data.use_language_column=false"
            )
        warn(f"{text}: {meant!r} is" if meant in columns else f"{text}: rename it to {meant!r}")


def require_column(location: str, columns: Collection[str], name: str, field: str) -> None:
    """Raises DataError, which suggests a similar name, for a table without a column that a config field names."""
    if name in columns:
        return
    if not columns:
        raise DataError(f"{location}: no rows: the file is empty; add a header and one line for each recording")
    refuse_missing_header(location, columns)
    similar = difflib.get_close_matches(name, columns, n=1, cutoff=0.5)
    nearest = usual_column(columns, (name, *_USUAL_NAMES[field])) or next(iter(similar), None)
    fix = f"set {field} to " + (repr(nearest) if nearest is not None else "the one that it should be")
    if len(columns) == 1 and re.search(r"[,;|\t]", next(iter(columns))):
        fix = "separate columns by commas or semicolons in .csv, by tabs in .tsv"
    raise DataError(f"{location}: no column {name!r} among {', '.join(sorted(columns))}: {fix}")


def _chunk_table(table: ParsedTable, chunk: list[Row], rules: TableRules, *, has_ids: bool) -> pa.Table:
    """Checks some rows and returns a table of them, without `row`; audio paths replace missing ids."""
    numbers, values = zip(*chunk, strict=True)
    paths, texts, ids, speakers, durations, languages, offsets, *slices = zip(*values, strict=True)
    required = [] if table.holds_recordings else [(rules.audio_column_name, paths)]
    for name, column in (*required, ("id", ids)) if has_ids else required:
        if not all(map(str.strip, column)):
            number = next(number for number, value in zip(numbers, column, strict=True) if not value.strip())
            place = f"{table.location}: {table.unit} {number}"
            raise DataError(f"{place} has an empty {name!r}: fill it in, or take the row out")
    base = base_of(table.location)
    located = paths if table.holds_recordings else [absolute(base, path) for path in paths]
    return pa.table(
        {
            "id": pa.array(ids if has_ids else paths, pa.string()),
            "audio": pa.array(located, pa.string()),
            "text": pa.array(texts, pa.string()),
            "speaker": pa.array([speaker or None for speaker in speakers], pa.string()),
            "duration_s": pa.array(_seconds(table, numbers, "duration", durations), pa.float64()),
            "language": pa.array([language.strip() or None for language in languages], pa.string()),
            "offset_s": pa.array(_seconds(table, numbers, "offset", offsets), pa.float64()),
            **{
                f"{SLICE}{name}": pa.array([value.strip() or None for value in column], pa.string())
                for name, column in zip(rules.slice_columns, slices, strict=True)
            },
        }
    )


def _seconds(table: ParsedTable, numbers: Sequence[int | str], name: str, values: Sequence[str]) -> list[float | None]:
    seconds: list[float | None] = []
    for number, value in zip(numbers, values, strict=True):
        try:
            seconds.append(to_seconds(value) if value else None)
        except ValueError as error:
            raise DataError(f"{table.location}: {table.unit} {number}: {name} {error}") from None
    return seconds


def ids_of_paths(paths: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Returns unique names: the paths, with #2, #3 added to repeated ones."""
    if pc.count_distinct(paths).as_py() == len(paths):
        return paths
    ids = paths.to_pylist()
    taken, times = set(ids), Counter[str]()
    for number, path in enumerate(ids):
        times[path] += 1
        if times[path] > 1:
            # A path may itself look like a numbered id.
            while (name := f"{path}#{times[path]}") in taken:
                times[path] += 1
            taken.add(name)
            ids[number] = name
    return pa.array(ids, pa.string())
