"""Tables of recordings and transcripts, of whatever format and named by whatever field, into one Arrow table."""

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

# Columns that are read where they exist.
_OPTIONAL = ("id", "speaker", "duration", "language", "offset")

_CHUNK_ROWS = 65_536
# A name that no column has.
_NO_COLUMN = "\0"

# Offset and duration are rounded, each by itself.
_SEGMENT_SLACK_S = 0.25

_OR_IGNORE = "take the column out, or name it in data.ignore_columns where recordings were cut already"
# What the two columns that must be there are called elsewhere.
_USUAL_NAMES = {
    "data.audio_column_name": AUDIO_COLUMNS,
    "data.text_column_name": TEXT_COLUMNS,
}


@dataclass(frozen=True)
class TableRules:
    """Which columns of tables are read: the fields of the data part of the same names.

    `text_column_name` is None where recordings have no transcripts; `slice_columns` are taken where they exist, see
    `data_source.SLICE`.
    """

    audio_column_name: str = "path"
    text_column_name: str | None = "text"
    use_languages: bool = True
    slice_columns: Sequence[str] = ()
    ignore_columns: Sequence[str] = ()

    @classmethod
    def of(cls, data: DataPart, split: str) -> Self:
        """Those of a split of a config."""
        return cls(
            data.audio_column_name,
            data.text_column_name,
            data.use_language_column is not False,
            () if split == "train" else data.slice_columns,
            data.ignore_columns,
        )

    @classmethod
    def of_recordings(cls, data: DataPart) -> Self:
        """Those of recordings without transcripts."""
        return cls(data.audio_column_name, None, use_languages=False, ignore_columns=data.ignore_columns)

    @property
    def ignored_of_wanted(self) -> set[str]:
        """Columns that would be read, and are ignored."""
        return {*_OPTIONAL, *self.slice_columns}.intersection(self.ignore_columns)

    @property
    def wanted(self) -> list[str]:
        """Columns whose values a `ParsedTable` gives, in this order."""
        names = [self.audio_column_name, self.text_column_name or _NO_COLUMN, *_OPTIONAL, *self.slice_columns]
        return [_NO_COLUMN if name in self.ignore_columns else name for name in names]


@dataclass(frozen=True)
class ParsedTable:
    """A table of recordings, of any format.

    Attributes:
        location: Its path or URL; relative paths of recordings count from its folder.
        columns: Names of all its columns.
        rows: The values of `TableRules.wanted`, each with its number.
        unit: What the numbers count.
        holds_recordings: Whether recordings are in the table itself, so that their paths are only names.
    """

    location: str
    columns: Collection[str]
    rows: Iterable[Row]
    unit: str = "line"
    holds_recordings: bool = False


@dataclass(frozen=True)
class Manifest:
    """Rows that were read.

    Attributes:
        location: The file that stands for all in messages; recordings in a bucket lie below its folder.
        content: What decides what the rows are.
        table: Of ROW_SCHEMA and slices; recordings may lie in archives, see `archive_path`.
        columns: Those of recordings and of transcripts.
        warnings: What a user should know of the rows.
        problems: Why rows have no recording, by id.
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
    """Parses a table of text.

    CSV is RFC 4180 (quotes doubled inside quotes). TSV knows no quotes: a transcript may start with one. JSON
    is one object a line; a .json may be a list of them. Text is UTF-8, with or without a byte order mark.

    Args:
        location: The table's path or URL: its extension (.csv, .tsv, .jsonl, .ndjson, .json) says what it is. A
            relative location counts from the working folder.
        content: The table's bytes.
        rules: Which columns are read.
        quoting: Whether quotes stand around the fields of a .csv.
        delimiter: What separates the columns of a .csv. None: what its header says.

    Raises:
        DataError: it cannot be parsed; the text names the line and the fix. That of a row may be raised on the way.
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
    """The rows of tables, each of which is checked.

    Besides audio and transcript, the columns `id`, `speaker`, `duration` (seconds), `language` and `offset` (seconds)
    are taken where they exist, and slices, no others; those that say in another way which part of a recording is meant
    are refused. Names are told apart by case: a `Language` is refused, too, and of a `Speaker` there is a warning.
    Empty transcripts are kept.

    Where a row has an `offset`, rows are segments, as in NeMo: `duration` seconds from `offset` on, which is 0 where it
    is left out; without a duration, all from there.

    Args:
        tables: At least one.
        rules: Which columns were read.
        warn: Called with a line for each column that is not read and has the name of one that is, in another case.

    Returns:
        A table of ROW_SCHEMA and slices, in the order of the tables: `row` counts from 0; `id` is the column `id`, or
        else the audio path as written, with #2, #3 added when it comes again; `audio` is an absolute path or URL;
        `offset_s` is null where the rows are complete recordings.

    Raises:
        DataError: the tables cannot be used; the text names the line and the fix.
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
    """The samples of a segment of a complete recording (T,); without a duration, all from `offset_s` on.

    Returns:
        Samples (S,), S > 0. Segments that follow each other share no sample and miss none.

    Raises:
        AudioError: the recording ends before the segment does, or the segment is empty.
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
    """Tells of columns that have the name of one that is read, but for case and spaces.

    Raises:
        DataError: the clips' languages would be lost, which decide what is trained.
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
    """Refuses a table without a column that a field of the config names, with a DataError that knows a near one."""
    if name in columns:
        return
    if not columns:
        raise DataError(f"{location}: no rows: the file is empty; add a header and one line for each recording")
    refuse_missing_header(location, columns)
    similar = difflib.get_close_matches(name, columns, n=1, cutoff=0.5)
    nearest = usual_column(columns, (name, *_USUAL_NAMES[field])) or next(iter(similar), None)
    fix = f"set {field} to {nearest!r}" if nearest is not None else f"set {field} to the one that it should be"
    if len(columns) == 1 and re.search(r"[,;|\t]", next(iter(columns))):
        fix = "separate columns by commas or semicolons in .csv, by tabs in .tsv"
    raise DataError(f"{location}: no column {name!r} among {', '.join(sorted(columns))}: {fix}")


def _chunk_table(table: ParsedTable, chunk: list[Row], rules: TableRules, *, has_ids: bool) -> pa.Table:
    """Check some rows and make a table of them, without `row`; audio paths stand in for ids not given."""
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


def _seconds(table: ParsedTable, numbers: Sequence[int], name: str, values: Sequence[str]) -> list[float | None]:
    seconds: list[float | None] = []
    for number, value in zip(numbers, values, strict=True):
        try:
            seconds.append(to_seconds(value) if value else None)
        except ValueError as error:
            raise DataError(f"{table.location}: {table.unit} {number}: {name} {error}") from None
    return seconds


def ids_of_paths(paths: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Names that are all different: the paths, with #2, #3 added when one comes again."""
    if pc.count_distinct(paths).as_py() == len(paths):
        return paths
    taken = set(paths.to_pylist())
    times: Counter[str] = Counter()
    ids = []
    for path in paths.to_pylist():
        times[path] += 1
        name = path
        if times[path] > 1:
            # A path may itself be written like a numbered id.
            while (name := f"{path}#{times[path]}") in taken:
                times[path] += 1
            taken.add(name)
        ids.append(name)
    return pa.array(ids, pa.string())
