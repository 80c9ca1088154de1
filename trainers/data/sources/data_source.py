"""Defines the interface of data sources: a source lists its splits and their rows, and reads the rows' recordings.

A new source is a file next to this one with a subclass of `DataSource`, and a line in `known_sources`.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.sources.located_files import prefix_of
from trainers.data.sources.recording_readers import FileReader, RecordingReader
from trainers.distributed.console import print_line
from trainers.errors import RayscribeError
from trainers.storage import Storage

SPLITS = ("train", "validation", "test")
# Columns of every table of rows. `row` counts from 0, and `audio` is the recording's path or name; `offset_s` is null
# if rows are complete recordings, and `language` if they have the config's language.
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
# Prefix of the columns of `data.slice_columns` in these tables, if a source has them: null if a row has no value.
SLICE = "slice."


@dataclass(frozen=True)
class SourceMember:
    """One set of a mix; `language` is that of clips without their own, and None for the config's language."""

    name: str
    language: str | None
    source: "SourceSplit"


@dataclass(frozen=True)
class SourceSplit:
    """One split of a data source.

    Attributes:
        split: train, validation or test; or the field that names recordings to mix into clips.
        origin: Its name in messages: a path, a URL, a data set.
        table: The columns of ROW_SCHEMA, those that the reader needs, and slices, see SLICE.
        reader: Reads the recordings of rows, on any node.
        fingerprint: Hash of everything that determines the content of the rows.
        node_files: Files of many recordings each, which every node must be able to read.
        rows_at_once: Number of rows whose recordings are best read together: a row group of a Parquet file.
        warnings: Messages to the user about the rows.
        recording_fingerprints: The part of the fingerprint for each recording, by path.
        members: The sets that a mix joins: each is prepared separately.
        unpacked: The table before its segments were joined into clips, see `packing`; None if they were not.
    """

    split: str
    origin: str
    table: pa.Table
    reader: RecordingReader
    fingerprint: str
    node_files: Sequence[str] = ()
    rows_at_once: int = 1
    warnings: Sequence[str] = ()
    recording_fingerprints: Mapping[str, str] = field(default_factory=dict)
    members: Sequence[SourceMember] = ()
    unpacked: pa.Table | None = None

    @property
    def is_training(self) -> bool:
        """True for the training split, and for the part of it that is a member of a mix, `train (name)`."""
        return self.split.partition(" ")[0] == "train"

    @property
    def has_file_per_recording(self) -> bool:
        """True if each recording is a separate file, named in the column `audio`."""
        return isinstance(self.reader, FileReader)


class DataSource(ABC):
    """The data source of a config."""

    def __init__(self, data: DataPart, storage_options: StorageOptions):
        """Stores the config; reads nothing yet."""
        self.data, self.storage_options = data, storage_options

    @property
    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The splits that the source has, out of SPLITS."""

    @abstractmethod
    def open(self, split: str, fingerprint_cache: Storage | None) -> SourceSplit:
        """Opens a split.

        `fingerprint_cache` stores fingerprints of recordings, so that each is read once; if None, they are not stored.

        Raises:
            DataError: Rows are missing or wrong.
            StorageError: A bucket cannot be read.
        """

    def refuse_missing(self, splits: Collection[str]) -> None:  # noqa: B027 -- others have nothing to look for
        """Raises NotHereError if local files of the splits are missing, as far as this is known without delay."""

    @property
    def listing_requires_job(self) -> str:
        """The reason why rows cannot be listed on this machine, outside a job; "" if they can."""
        return ""

    def truncated(self, counts: Mapping[str, int], folder: Path) -> DataPart:
        """Returns a data part with about `counts` of the first rows by split, for a debug run; itself if not possible.

        `folder` is for files that the data part names.
        """
        return self.data


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Puts a name, such as that of a config's field, before the messages of errors."""
    try:
        yield
    except RayscribeError as error:
        raise type(error)(f"{name}: {error}") from None


def print_warnings(sources: Iterable[SourceSplit]) -> None:
    """Prints the warnings about the rows of splits."""
    for source in sources:
        for text in source.warnings:
            print_line(f"warning: {text}")


def table_of(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Returns a table of ROW_SCHEMA with numbered rows; missing values are null. See `with_all_offsets`."""
    return with_all_offsets(
        pa.Table.from_pylist([{"row": number, **row} for number, row in enumerate(rows)], ROW_SCHEMA)
    )


def with_all_offsets(table: pa.Table) -> pa.Table:
    """Sets missing offsets to 0 if any row has an offset, since rows are then segments."""
    offsets = table["offset_s"]
    return with_columns(table, offset_s=pc.fill_null(offsets, 0.0)) if 0 < offsets.null_count < len(offsets) else table


def with_columns(table: pa.Table, **columns: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Returns a table with the values of some of its columns replaced."""
    for name, values in columns.items():
        position = table.schema.get_field_index(name)
        table = table.set_column(position, table.schema.field(position), values)
    return table


def with_prefixes(table: pa.Table, prefixes: Mapping[str, str]) -> tuple[pa.Table, list[str]]:
    """Returns a table of ROW_SCHEMA with replaced prefixes of its recordings' paths, and the prefixes without a match.

    Paths differ on the machines that run the job; see `prefix_of`.
    """
    paths, used = table["audio"].to_pylist(), set[str | None]()
    for number, path in enumerate(paths):
        used.add(prefix := prefix_of(path, prefixes))
        if prefix is not None:
            paths[number] = prefixes[prefix] + path[len(prefix) :]
    unused = [prefix for prefix in prefixes if prefix not in used]
    return with_columns(table, audio=pa.array(paths, pa.string())), unused
