"""The seam of data sources: a source lists its splits and the rows of each, and says what reads their recordings.

A new source is a file next to this one with a subclass of `DataSource`, and a line in `known_sources`.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.sources.recording_readers import FileReader, RecordingReader
from trainers.distributed.console import print_line
from trainers.storage import Storage

SPLITS = ("train", "validation", "test")
# Columns of every table of rows. `row` counts from 0, and `audio` is the recording's path or name; `offset_s` is null
# where rows are complete recordings, and `language` where they have the config's.
ROW_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("audio", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("speaker", pa.string()),
        pa.field("duration_s", pa.float64()),
        pa.field("language", pa.string()),
        pa.field("offset_s", pa.float64()),
    ]
)
# How the names of columns of `data.slice_columns` begin in these tables, where a source has them: null where a row has
# no value.
SLICE = "slice."


@dataclass(frozen=True)
class SourceMember:
    """One set of a mix; its clips that name no language have `language`, or where that is None the config's."""

    name: str
    language: str | None
    source: "SourceSplit"


@dataclass(frozen=True)
class SourceSplit:
    """One split of a data source.

    Attributes:
        split: train, validation or test; or the field that names recordings which are mixed into clips.
        origin: Its name in messages: a path, a URL, a data set.
        table: Rows: the columns of ROW_SCHEMA, and those that its reader needs; and slices, see SLICE.
        reader: Reads the recordings of rows, on any node.
        fingerprint: Hash of everything that decides what the rows hold.
        node_files: Files of many recordings that every node must be able to read.
        rows_at_once: Rows whose recordings are best read together: a group of a Parquet file.
        note: What a user should know of the fingerprint; "" for nothing.
        warnings: What a user should know of the rows.
        recording_fingerprints: What of each recording is in the fingerprint, by its path.
        members: Of a mix, the sets that are joined: each is prepared by itself.
    """

    split: str
    origin: str
    table: pa.Table
    reader: RecordingReader
    fingerprint: str
    node_files: Sequence[str] = ()
    rows_at_once: int = 1
    note: str = ""
    warnings: Sequence[str] = ()
    recording_fingerprints: Mapping[str, str] = field(default_factory=dict)
    members: Sequence[SourceMember] = ()

    @property
    def has_file_per_recording(self) -> bool:
        """Whether each recording is a file of its own, which the column `audio` names."""
        return isinstance(self.reader, FileReader)


class DataSource(ABC):
    """The data source of a config."""

    def __init__(self, data: DataPart, storage_options: StorageOptions):
        """Reads nothing yet.

        Args:
            data: The config's data part.
            storage_options: How buckets are reached.
        """
        self.data, self.storage_options = data, storage_options

    @property
    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """Those of SPLITS that it has."""

    @abstractmethod
    def open(self, split: str, fingerprint_cache: Storage | None) -> SourceSplit:
        """Opens one of its splits.

        Args:
            split: Its name.
            fingerprint_cache: Where fingerprints of recordings are kept, so that each is read once. None: nowhere.

        Raises:
            DataError: its rows are missing or wrong.
            StorageError: a bucket cannot be read.
        """

    def refuse_missing(self, splits: Collection[str]) -> None:  # noqa: B027 -- others have nothing to look for
        """Looks for files of this machine that splits are read from, as far as that takes no time.

        Raises:
            NotHereError: one is missing.
        """

    @property
    def listing_requires_job(self) -> str:
        """Why its rows cannot be listed on this machine, where no job runs; "" where they can."""
        return ""

    def truncated(self, counts: Mapping[str, int], folder: Path) -> DataPart:
        """The data part with about as many of its first rows, for a rehearsal; all where it cannot be shortened.

        Args:
            counts: Rows by split.
            folder: A folder for files that it names.
        """
        return self.data


def print_warnings(sources: Iterable[SourceSplit]) -> None:
    """Prints what a user should know of the rows of splits."""
    for source in sources:
        for text in source.warnings:
            print_line(f"warning: {text}")


def table_of(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """A table of ROW_SCHEMA, whose rows are counted; values that are not given are null. See `with_all_offsets`."""
    return with_all_offsets(
        pa.Table.from_pylist([{"row": number, **row} for number, row in enumerate(rows)], ROW_SCHEMA)
    )


def with_all_offsets(table: pa.Table) -> pa.Table:
    """Where one row has an offset, all are segments, from the beginning of their recordings where they have none."""
    offsets = table["offset_s"]
    return with_columns(table, offset_s=pc.fill_null(offsets, 0.0)) if 0 < offsets.null_count < len(offsets) else table


def with_columns(table: pa.Table, **columns: pa.Array | pa.ChunkedArray) -> pa.Table:
    """A table with other values in columns that it has."""
    for name, values in columns.items():
        position = table.schema.get_field_index(name)
        table = table.set_column(position, table.schema.field(position), values)
    return table


def rows_of(ids: pa.Array, audio: pa.Array, texts: pa.Array) -> pa.Table:
    """A table of ROW_SCHEMA, of complete recordings of which nothing else is known."""
    given = {"row": pa.array(range(len(ids))), "id": ids, "audio": audio, "text": texts}
    return pa.table({field.name: given.get(field.name, pa.nulls(len(ids), field.type)) for field in ROW_SCHEMA}).cast(
        ROW_SCHEMA
    )
