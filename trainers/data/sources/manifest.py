"""Manifests: a table of recordings and transcripts, as CSV, TSV or JSON lines, into one Arrow table."""

import difflib
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainers.data.sources.data_source import ROW_SCHEMA, SLICE
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

# What the two columns that must be there are called elsewhere.
_USUAL_NAMES = {
    "data.audio_column_name": AUDIO_COLUMNS,
    "data.text_column_name": TEXT_COLUMNS,
}


def read_manifest(
    location: str,
    content: bytes,
    *,
    audio_column_name: str = "path",
    text_column_name: str | None = "text",
    use_languages: bool = True,
    slice_columns: Sequence[str] = (),
    warn: Callable[[str], None] = lambda _: None,
) -> pa.Table:
    """Read a manifest, checking every row.

    CSV is RFC 4180 (quotes doubled inside quotes). TSV knows no quotes: a transcript may start with one. JSON
    is one object a line. Text is UTF-8, with or without a byte order mark. Besides audio and transcript, the
    columns `id`, `speaker`, `duration` (seconds), `language` and `offset` (seconds) are taken where they exist, and
    `slice_columns`, no others; those that say in another way which part of a recording is meant are refused. Names are
    told apart by case: a `Language` is refused, too, and of a `Speaker` there is a warning.

    Where a row has an `offset`, rows are segments, as in NeMo: `duration` seconds from `offset` on, which is 0 where it
    is left out; without a duration, all from there.

    Args:
        location: The manifest's path or URL: its extension (.csv, .tsv, .jsonl, .json) says what it is, and
            relative audio paths count from its folder. A relative location counts from the working folder.
        content: The manifest's bytes.
        audio_column_name: The column of audio paths or URLs.
        text_column_name: The column of transcripts; empty ones are kept. None: the recordings have none.
        use_languages: Whether the languages of clips are used.
        slice_columns: Others to take where they exist, see `data_source.SLICE`.
        warn: Called with a line for each column that is not read and has the name of one that is, in another case.

    Returns:
        A table of ROW_SCHEMA and slices, in the order of the manifest: `row` counts from 0; `id` is the column `id`, or
        else the audio path as written, with #2, #3 added when it comes again; `audio` is an absolute path or URL;
        `offset_s` is null where the rows are complete recordings.

    Raises:
        DataError: The manifest cannot be used; the text names the line and the fix.
    """
    text = decode(location, content)
    wanted = [audio_column_name, text_column_name or _NO_COLUMN, *_OPTIONAL, *slice_columns]
    columns, rows = _rows(location, text, wanted)
    _require_column(location, columns, audio_column_name, "data.audio_column_name")
    if text_column_name is not None:
        _require_column(location, columns, text_column_name, "data.text_column_name")
    refuse_unread(location, columns, (audio_column_name, text_column_name))
    _tell_misspelled(location, columns, wanted, warn, use_languages=use_languages)
    chunks = []
    while chunk := list(islice(rows, _CHUNK_ROWS)):
        chunks.append(_chunk_table(location, chunk, audio_column_name, "id" in columns, slice_columns))
    if not chunks:
        raise DataError(f"{location}: no rows: add one line for each recording")
    table = pa.concat_tables(chunks)
    ids = checked_ids(location, table["id"]) if "id" in columns else _ids_of_paths(table["id"])
    row = pa.array(range(len(table)), pa.int64())
    if table["offset_s"].null_count < len(table):
        offsets = pc.fill_null(table["offset_s"], 0.0)
        table = table.set_column(table.schema.get_field_index("offset_s"), "offset_s", offsets)
    schema = pa.schema([*ROW_SCHEMA, *(pa.field(f"{SLICE}{name}", pa.string()) for name in slice_columns)])
    return table.set_column(0, "id", ids).add_column(0, "row", row).cast(schema)


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


def _tell_misspelled(
    location: str,
    columns: Collection[str],
    wanted: Sequence[str],
    warn: Callable[[str], None],
    *,
    use_languages: bool,
) -> None:
    """Tells of columns that have the name of one that is read, but for case and spaces.

    Raises:
        DataError: the clips' languages would be lost, which decide what is trained.
    """
    by_folded = {name.casefold(): name for name in wanted}
    for name in dict.fromkeys(columns):
        meant = by_folded.get(name.strip().casefold())
        if meant is None or name in wanted:
            continue
        text = f"{location}: the column {name!r} is not read"
        if meant == "language" and use_languages and meant not in columns:
            raise DataError(
                f"{text}: rename it to 'language', or leave it out with --set data.use_language_column=false"
            )
        warn(f"{text}: {meant!r} is" if meant in columns else f"{text}: rename it to {meant!r}")


def _rows(location: str, text: str, wanted: Sequence[str]) -> tuple[Collection[str], Iterator[Row]]:
    suffix = posixpath.splitext(location)[1].lower()
    if suffix in (".csv", ".tsv"):
        return delimited_rows(location, text, _separator(text) if suffix == ".csv" else "\t", wanted)
    if suffix in (".jsonl", ".json"):
        return json_rows(location, text, wanted)
    raise DataError(f"{location}: the extension {suffix!r} is not a manifest's: name it .csv, .tsv or .jsonl")


def _separator(text: str) -> str:
    """What separates columns; spreadsheets write semicolons where the decimal mark is a comma."""
    header = text.lstrip().partition("\n")[0]
    return ";" if ";" in header and "," not in header else ","


def _require_column(location: str, columns: Collection[str], name: str, field: str) -> None:
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


def _chunk_table(
    location: str, chunk: list[Row], audio_column_name: str, has_ids: bool, slice_columns: Sequence[str]
) -> pa.Table:
    """Check some rows and make a table of them, without `row`; audio paths stand in for ids not given."""
    lines, values = zip(*chunk, strict=True)
    paths, texts, ids, speakers, durations, languages, offsets, *slices = zip(*values, strict=True)
    for name, column in ((audio_column_name, paths), ("id", ids)) if has_ids else ((audio_column_name, paths),):
        if not all(map(str.strip, column)):
            line = next(line for line, value in zip(lines, column, strict=True) if not value.strip())
            raise DataError(f"{location}: line {line} has an empty {name!r}: fill it in, or take the row out")
    base = base_of(location)
    return pa.table(
        {
            "id": pa.array(ids if has_ids else paths, pa.string()),
            "audio": pa.array([absolute(base, path) for path in paths], pa.string()),
            "text": pa.array(texts, pa.string()),
            "speaker": pa.array([speaker or None for speaker in speakers], pa.string()),
            "duration_s": pa.array(_seconds(location, lines, "duration", durations), pa.float64()),
            "language": pa.array([language.strip() or None for language in languages], pa.string()),
            "offset_s": pa.array(_seconds(location, lines, "offset", offsets), pa.float64()),
            **{
                f"{SLICE}{name}": pa.array([value.strip() or None for value in column], pa.string())
                for name, column in zip(slice_columns, slices, strict=True)
            },
        }
    )


def _seconds(location: str, lines: Sequence[int], name: str, values: Sequence[str]) -> list[float | None]:
    seconds: list[float | None] = []
    for line, value in zip(lines, values, strict=True):
        try:
            seconds.append(to_seconds(value) if value else None)
        except ValueError as error:
            raise DataError(f"{location}: line {line}: {name} {error}") from None
    return seconds


def _ids_of_paths(paths: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
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
