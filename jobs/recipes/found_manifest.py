"""Reads the rows of a manifest, whatever its columns are called and its fields are separated by."""

import csv
import io
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from trainers.data.sources.archives.source_files import SourceFiles
from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.manifest import read_manifest
from trainers.data.sources.manifest_fields import (
    AUDIO_COLUMNS,
    TEXT_COLUMNS,
    decode,
    delimited_rows,
    json_objects,
    json_rows,
    refuse_missing_header,
    usual_column,
)
from trainers.errors import ConfigError, DataError

ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
OTHER_SEPARATORS = ";\t|"
# What the column of speakers is called elsewhere.
SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id", "spk_id", "spk", "speakerid", "speaker_name", "user_id")


@dataclass(frozen=True)
class Columns:
    """Columns that the user has named. None: found by their usual names."""

    audio: str | None = None
    text: str | None = None
    speaker: str | None = None


def read_manifest_rows(
    location: str, files: SourceFiles, columns: Columns
) -> tuple[SourceSplit, tuple[str, str], bool]:
    """The rows of a manifest, its columns of recordings and transcripts, and whether a recipe can name it as it is.

    Raises:
        ConfigError: there is no manifest, or its columns are not known.
        DataError: it is wrong.
    """
    if posixpath.splitext(location)[1].lower() not in ENDINGS:
        raise ConfigError(
            f"{location}: its ending is none of a manifest's ({', '.join(ENDINGS)}): name one, a folder of "
            "recordings, or FORMAT:PATH (docs/data.md)"
        )
    content = files.read(location)
    if content is None:
        raise ConfigError(f"{location}: no such file: name a manifest (.csv, .tsv, .jsonl) or a folder of recordings")
    text = decode(location, content)
    names, separated = _columns_of(location, text)
    if separated is not None:
        content = _with_commas(text, separated)
    if not names:
        raise DataError(f"{location}: it has no rows: write a header and a line for each recording")
    audio = columns.audio or usual_column(names, AUDIO_COLUMNS)
    transcript = columns.text or usual_column(names, TEXT_COLUMNS)
    if audio not in names:
        refuse_missing_header(location, names)
    speaker = columns.speaker or usual_column(names, SPEAKER_COLUMNS)
    _refuse_unknown(location, names, Columns(audio, transcript, speaker))
    assert audio is not None and transcript is not None
    table = read_manifest(location, content, audio_column_name=audio, text_column_name=transcript)
    if speaker not in (None, "speaker"):
        table = _with_speakers(table, location, content.decode("utf-8-sig"), speaker)
    return open_rows("", location, table, files), (audio, transcript), separated is None


def _refuse_unknown(location: str, names: Sequence[str], columns: Columns) -> None:
    """Refuses columns that are not there, all in one message."""
    no_texts = (
        " (if none does, write what is said into a column text: without transcripts there is nothing to train on)"
    )
    wanted = [
        ("--audio-column", columns.audio, "recordings", ""),
        ("--text-column", columns.text, "transcripts", no_texts),
    ]
    if columns.speaker is not None:
        wanted.append(("--speaker-column", columns.speaker, "speakers", ""))
    problems = [
        f"{f'none is {name!r}:' if name is not None else f'which one names the {what}?'} name it with {option}{more}"
        for option, name, what, more in wanted
        if name not in names
    ]
    if problems:
        raise ConfigError(f"{location}: of its columns ({', '.join(names)}) {'; '.join(problems)}")


def open_rows(split: str, location: str, table: pa.Table, files: SourceFiles) -> SourceSplit:
    """Rows with what reads their recordings; they have no fingerprint, as nothing is prepared of them."""
    rows = files.locate(table, {})
    return SourceSplit(split, location, rows.table, rows.reader, fingerprint="")


def _columns_of(location: str, text: str) -> tuple[Sequence[str], str | None]:
    """Names of the columns, and what separates them in a .csv, unless that is a comma."""
    suffix = posixpath.splitext(location)[1].lower()
    if suffix not in (".csv", ".tsv"):
        return [*next(json_objects(location, text), (0, {}))[1]], None
    first = text.lstrip("\r\n").partition("\n")[0]
    found = next((each for each in OTHER_SEPARATORS if each in first and "," not in first), None)
    separated = found if suffix == ".csv" else None
    delimiter = separated or ("," if suffix == ".csv" else "\t")
    header = next(csv.reader([first], delimiter=delimiter), [])
    return [name.strip() for name in header], separated


def _with_speakers(table: pa.Table, location: str, text: str, column: str) -> pa.Table:
    """The table with the speakers that a column of another name has."""
    # Of JSON, the first two must be text.
    wanted = ("", "", column)
    is_json = posixpath.splitext(location)[1].lower() not in (".csv", ".tsv")
    delimiter = "," if location.lower().endswith(".csv") else "\t"
    _, rows = json_rows(location, text, wanted) if is_json else delimited_rows(location, text, delimiter, wanted)
    speakers = pa.array([values[2].strip() or None for _, values in rows], pa.string())
    return table.set_column(table.schema.get_field_index("speaker"), "speaker", speakers)


def _with_commas(text: str, separator: str) -> bytes:
    written = io.StringIO(newline="")
    csv.writer(written).writerows(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    return written.getvalue().encode()
