"""Manifests: a table of recordings and transcripts, as CSV, TSV or JSON lines, into one Arrow table."""

import csv
import difflib
import io
import json
import math
import posixpath
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainers.errors import DataError

SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("audio", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("speaker", pa.string()),
        pa.field("duration_s", pa.float64()),
        pa.field("language", pa.string()),
    ]
)

_CHUNK_ROWS = 65_536
_MAX_NAMED = 5
# A name that no column has.
_NO_COLUMN = "\0"

# What Hugging Face, NeMo, Common Voice, SpeechBrain and DeepSpeech call the two columns that must be there.
_USUAL_NAMES = {
    "data.audio_column_name": ("path", "audio", "audio_filepath", "file", "file_name", "wav", "wav_filename"),
    "data.text_column_name": ("text", "sentence", "transcript", "transcription", "wrd", "normalized_text"),
}

# One row: the line it ends on, and its values under the columns asked for, "" where there is none.
_Row = tuple[int, Sequence[str]]


def read_manifest(
    location: str,
    content: bytes,
    *,
    audio_column_name: str = "path",
    text_column_name: str | None = "text",
) -> pa.Table:
    """Read a manifest, checking every row.

    CSV is RFC 4180 (quotes doubled inside quotes). TSV knows no quotes: a transcript may start with one. JSON
    is one object a line. Text is UTF-8, with or without a byte order mark. Besides audio and transcript, the
    columns `id`, `speaker`, `duration` (seconds) and `language` are taken where they exist, and no others.

    Args:
        location: The manifest's path or URL: its extension (.csv, .tsv, .jsonl, .json) says what it is, and
            relative audio paths count from its folder. A relative location counts from the working folder.
        content: The manifest's bytes.
        audio_column_name: The column of audio paths or URLs.
        text_column_name: The column of transcripts; empty ones are kept. None: the recordings have none.

    Returns:
        A table of SCHEMA, in the order of the manifest: `row` counts from 0; `id` is the column `id`, or else
        the audio path as written, with #2, #3 added when it comes again; `audio` is an absolute path or URL.

    Raises:
        DataError: The manifest cannot be used; the text names the line and the fix.
    """
    text = _decode(location, content)
    wanted = [audio_column_name, text_column_name or _NO_COLUMN, "id", "speaker", "duration", "language"]
    suffix = posixpath.splitext(location)[1].lower()
    if suffix in (".csv", ".tsv"):
        columns, rows = _delimited_rows(location, text, "," if suffix == ".csv" else "\t", wanted)
    elif suffix in (".jsonl", ".json"):
        columns, rows = _json_rows(location, text, wanted)
    else:
        raise DataError(f"{location}: the extension {suffix!r} is not a manifest's: name it .csv, .tsv or .jsonl")
    _require_column(location, columns, audio_column_name, "data.audio_column_name")
    if text_column_name is not None:
        _require_column(location, columns, text_column_name, "data.text_column_name")
    chunks = []
    while chunk := list(islice(rows, _CHUNK_ROWS)):
        chunks.append(_chunk_table(location, chunk, audio_column_name, "id" in columns))
    if not chunks:
        raise DataError(f"{location}: no rows: add one line for each recording")
    table = pa.concat_tables(chunks)
    ids = _checked_ids(location, table["id"]) if "id" in columns else _ids_of_paths(table["id"])
    row = pa.array(range(len(table)), pa.int64())
    return table.set_column(0, "id", ids).add_column(0, "row", row).cast(SCHEMA)


def _decode(location: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{location}: byte {error.start} (line {line}) is not UTF-8: save the manifest as UTF-8"
        ) from None


def _delimited_rows(
    location: str, text: str, delimiter: str, wanted: Sequence[str]
) -> tuple[Collection[str], Iterator[_Row]]:
    """Return the header's columns, and the rows as they are read."""
    file = io.StringIO(text, newline="")
    if delimiter == ",":
        reader = csv.reader(file, strict=True)
    else:
        reader = csv.reader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise DataError(f"{location}: line 1: {error}: quote the column names as CSV asks") from None
    repeated = [name for name in wanted if header.count(name) > 1]
    if repeated:
        raise DataError(f"{location}: the header names the column {repeated[0]!r} twice: rename one of them")
    width = len(header)
    pick = itemgetter(*(header.index(name) if name in header else width for name in wanted))

    def rows() -> Iterator[_Row]:
        try:
            for fields in reader:
                if len(fields) != width:
                    if not fields:
                        continue
                    raise DataError(_wrong_width(location, reader.line_num, len(fields), width, delimiter))
                fields.append("")  # What columns that are not there point to.
                yield reader.line_num, pick(fields)
        except csv.Error as error:
            fix = "close every quote, and double quotes inside quotes"
            raise DataError(f"{location}: line {reader.line_num}: {error}: {fix}") from None

    return header, rows()


def _wrong_width(location: str, line: int, fields: int, width: int, delimiter: str) -> str:
    fix = "quote a field that holds a comma" if delimiter == "," else "take tabs out of the fields"
    return f"{location}: line {line} has {fields} fields where the header has {width}: {fix}"


def _json_rows(location: str, text: str, wanted: Sequence[str]) -> tuple[Collection[str], Iterator[_Row]]:
    """Return every key that occurs, and the rows."""
    keys: set[str] = set()
    rows: list[_Row] = []
    must_be_text = set(wanted[:2])
    for line, record_text in enumerate(text.split("\n"), start=1):
        if not record_text.strip():
            continue
        try:
            record = json.loads(record_text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{location}: line {line} is not JSON ({error}): write one object a line") from None
        if not isinstance(record, dict):
            raise DataError(f"{location}: line {line} is not a JSON object: write one object a line, no list")
        keys.update(record)
        values = []
        for name in wanted:
            value = record.get(name)
            if not isinstance(value, str):
                value = _text_of_json(location, line, name, value, name in must_be_text)
            values.append(value)
        rows.append((line, tuple(values)))
    return keys, iter(rows)


def _text_of_json(location: str, line: int, name: str, value: Any, must_be_text: bool) -> str:
    if value is None:
        return ""
    if must_be_text or isinstance(value, (bool, list, dict)):
        raise DataError(f"{location}: line {line}: {name!r} is {value!r}: write it as a string")
    return str(value)


def _require_column(location: str, columns: Collection[str], name: str, field: str) -> None:
    if name in columns:
        return
    if not columns:
        raise DataError(f"{location}: no rows: the file is empty; add a header and one line for each recording")
    usual = [other for other in _USUAL_NAMES[field] if other in columns]
    nearest = usual or difflib.get_close_matches(name, columns, n=1, cutoff=0.5)
    fix = f"to {nearest[0]!r}" if nearest else "to the one that it should be"
    raise DataError(f"{location}: no column {name!r} among {', '.join(sorted(columns))}: set {field} {fix}")


def _chunk_table(location: str, chunk: list[_Row], audio_column_name: str, has_ids: bool) -> pa.Table:
    """Check some rows and make a table of them, without `row`; audio paths stand in for ids not given."""
    lines, values = zip(*chunk, strict=True)
    paths, texts, ids, speakers, durations, languages = zip(*values, strict=True)
    for name, column in ((audio_column_name, paths), ("id", ids)) if has_ids else ((audio_column_name, paths),):
        if not all(map(str.strip, column)):
            line = next(line for line, value in zip(lines, column, strict=True) if not value.strip())
            raise DataError(f"{location}: line {line} has an empty {name!r}: fill it in, or take the row out")
    base = _base(location)
    return pa.table(
        {
            "id": pa.array(ids if has_ids else paths, pa.string()),
            "audio": pa.array([_absolute(base, path) for path in paths], pa.string()),
            "text": pa.array(texts, pa.string()),
            "speaker": pa.array([speaker or None for speaker in speakers], pa.string()),
            "duration_s": pa.array(_durations_s(location, lines, durations), pa.float64()),
            "language": pa.array([language or None for language in languages], pa.string()),
        }
    )


def _durations_s(location: str, lines: Sequence[int], values: Sequence[str]) -> list[float | None]:
    durations_s: list[float | None] = []
    for line, value in zip(lines, values, strict=True):
        if not value:
            durations_s.append(None)
            continue
        try:
            duration_s = float(value)
        except ValueError:
            duration_s = math.nan
        if not 0 <= duration_s < math.inf:
            raise DataError(f"{location}: line {line}: duration {value!r} is not a number of seconds: correct it")
        durations_s.append(duration_s)
    return durations_s


def _base(location: str) -> tuple[str, str]:
    """Split the folder of a manifest into scheme and host ("s3://bucket", or "") and absolute path."""
    if "://" not in location:
        return "", posixpath.normpath(Path(location).absolute().parent)
    scheme, _, rest = location.partition("://")
    host, _, key = rest.partition("/")
    return f"{scheme}://{host}", posixpath.dirname(f"/{key}")


def _absolute(base: tuple[str, str], path: str) -> str:
    """Join a path to the manifest's folder; absolute paths and URLs stay as they are."""
    if path.startswith("/") or "://" in path:
        return path
    root, folder = base
    joined = f"{folder}/{path}" if folder != "/" else f"/{path}"
    # Object stores take "." and ".." literally.
    return root + (posixpath.normpath(joined) if "./" in path or "//" in path else joined)


def _checked_ids(location: str, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    if pc.count_distinct(ids).as_py() != len(ids):
        repeated = [repr(name) for name, count in Counter(ids.to_pylist()).items() if count > 1]
        named = ", ".join(repeated[:_MAX_NAMED]) + (" and others" if len(repeated) > _MAX_NAMED else "")
        raise DataError(f"{location}: {len(repeated)} ids occur more than once ({named}): make them unique")
    return ids


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
