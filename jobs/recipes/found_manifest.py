"""Reads the rows of a manifest, with any names of columns and any separator."""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from trainers.config.parts.data_part import Quoting
from trainers.data.sources.archives.source_files import SourceFiles
from trainers.data.sources.data_source import SLICE, SourceSplit
from trainers.data.sources.manifest import TableRules, read_manifest
from trainers.data.sources.manifest_fields import (
    AUDIO_COLUMNS,
    TEXT_COLUMNS,
    decode,
    delimited_rows,
    json_objects,
    refuse_missing_header,
    separator_of,
    usual_column,
)
from trainers.errors import ConfigError, DataError

ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
OTHER_SEPARATORS = ";\t|"
_NO_COLUMN = "\0"
# Other usual names of the speaker column.
SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id", "spk_id", "spk", "speakerid", "speaker_name", "user_id")


@dataclass(frozen=True)
class Columns:
    """Columns that the user has named. None: found by their usual names; `ignored` ones are skipped."""

    audio: str | None = None
    text: str | None = None
    speaker: str | None = None
    ignored: tuple[str, ...] = ()


def read_manifest_rows(
    location: str, files: SourceFiles, columns: Columns
) -> tuple[SourceSplit, tuple[str, str], bool]:
    """Returns a manifest's rows, its recording and transcript columns, and True if a recipe can name it unchanged.

    Raises:
        ConfigError: there is no manifest, or its columns are not known.
        DataError: the manifest is not valid.
    """
    if posixpath.splitext(location)[1].lower() not in ENDINGS:
        raise ConfigError(
            f"{location}: its ending is none of a manifest's ({', '.join(ENDINGS)}): name one, a folder of "
            "recordings, or FORMAT:PATH (docs/data.md)"
        )
    content = files.read(location)
    if content is None:
        raise ConfigError(f"{location}: no such file: name a manifest (.csv, .tsv, .jsonl) or a folder of recordings")
    names, separator = _columns_of(location, decode(location, content), files.quoting)
    if not names:
        raise DataError(f"{location}: it has no rows: write a header and a line for each recording")
    names = [name for name in names if name not in columns.ignored]
    audio = columns.audio or usual_column(names, AUDIO_COLUMNS)
    transcript = columns.text or usual_column(names, TEXT_COLUMNS)
    if audio not in names:
        refuse_missing_header(location, names)
    speaker = columns.speaker or usual_column(names, SPEAKER_COLUMNS)
    _refuse_unknown(location, names, Columns(audio, transcript, speaker))
    assert audio is not None and transcript is not None
    rules = TableRules(
        audio, transcript, slice_columns=[] if speaker is None else [speaker], ignore_columns=columns.ignored
    )
    table = read_manifest(location, content, rules, quoting=files.quoting, delimiter=separator)
    if speaker is not None:
        place = table.schema.get_field_index("speaker")
        table = table.set_column(place, "speaker", table[f"{SLICE}{speaker}"]).drop_columns(f"{SLICE}{speaker}")
    return open_rows("", location, table, files), (audio, transcript), separator in (None, ",")


def _refuse_unknown(location: str, names: Sequence[str], columns: Columns) -> None:
    """Rejects missing columns, all in one message."""
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
    """Returns rows with the reader of their recordings; without a fingerprint, since nothing is prepared from them."""
    rows = files.locate(table, {})
    return SourceSplit(split, location, rows.table, rows.reader, fingerprint="")


def _columns_of(location: str, text: str, quoting: Quoting) -> tuple[Sequence[str], str | None]:
    """Returns the names of the columns, and the separator of a .csv."""
    suffix = posixpath.splitext(location)[1].lower()
    if suffix not in (".csv", ".tsv"):
        # An object may lack keys that others have, such as an unknown speaker.
        return [*dict.fromkeys(name for _, row in json_objects(location, text) for name in row)], None
    separator = separator_of(text, OTHER_SEPARATORS) if suffix == ".csv" else None
    return [*delimited_rows(location, text, separator or "\t", [_NO_COLUMN], quoting=quoting)[0]], separator
