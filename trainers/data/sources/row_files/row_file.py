"""Reads rows of a data set's Parquet or Arrow files: the rows of a split, their locations, and their recordings.

Arrow files are those that `Dataset.save_to_disk` writes: Arrow's streaming format, or its file format. A local file is
mapped into memory, so that only the parts in use are read; one on the Hub is read from its beginning, batch by batch.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainers.config.storage_location import is_hub_url
from trainers.data.sources.located_files import open_url
from trainers.data.sources.manifest import ParsedTable, TableRules
from trainers.data.sources.manifest_fields import absolute, base_of
from trainers.data.sources.recording_readers import FileReader, Row
from trainers.errors import AudioError, DataError, StorageError

S = TypeVar("S")
T = TypeVar("T")

# Columns with the location of a row's recording.
FILE, ROW = "file", "file_row"
LOCATION = pa.schema([(FILE, pa.dictionary(pa.int32(), pa.string())), (ROW, pa.int64())])
PARALLEL_FILES = 8
# A row group may have gigabytes of audio, so it is read through a buffer, a few recordings at a time.
BUFFER_BYTES = 4 * 1024 * 1024
RECORDINGS_AT_ONCE = 16
# Magic bytes of the file format, https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format.
MAGIC = b"ARROW1"
# Files in which `datasets` lists the files of a data set, and the splits of several data sets.
_STATE, _DATASET_DICT = "state.json", "dataset_dict.json"


# A file, the first row of a range in it, and the end of the range.
RowRange = tuple["RowFile", int, int]


@dataclass(frozen=True)
class RowFile:
    """The metadata of a data set's file, at a path or a URL that fsspec opens (hf://datasets/…).

    `group_rows` is the size of its largest row group; a group is always read from its first row.
    """

    url: str
    rows: int
    group_rows: int
    schema: pa.Schema


@dataclass(frozen=True)
class ParquetRows:
    """Parquet, with a file's metadata in its footer.

    Each function raises OSError if a file cannot be read, and pyarrow.ArrowException if it is damaged.
    """

    name = "Parquet"

    def describe(self, url: str) -> RowFile:
        """Reads a file's metadata."""
        with open_url(url) as file:
            parquet = pq.ParquetFile(file)
            metadata = parquet.metadata
            counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            return RowFile(url, metadata.num_rows, max(counts, default=0), parquet.schema_arrow)

    def read_columns(self, url: str, columns: Sequence[str]) -> pa.Table:
        """Reads columns of a file, without the bytes of other columns; `audio.path` is one field of a column."""
        with open_url(url) as file:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            table = parquet.read(columns=list(columns), use_threads=False)
        # Finds invalid UTF-8 here, not on first use.
        table.validate(full=True)
        return table

    def read_values(self, url: str, column: str, wanted: Sequence[int]) -> Iterator[Any]:
        """Yields the values of a column in some rows, in ascending order."""
        with open_url(url) as file:
            parquet = pq.ParquetFile(file, buffer_size=BUFFER_BYTES, page_checksum_verification=True)
            ends = np.cumsum([parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)])
            refuse_too_few(parquet.metadata.num_rows, wanted)
            first, last = np.searchsorted(ends, (wanted[0], wanted[-1]), side="right").tolist()
            groups = list(range(first, last + 1))
            row, left = int(ends[first - 1]) if first else 0, list(reversed(wanted))
            for batch in parquet.iter_batches(RECORDINGS_AT_ONCE, row_groups=groups, columns=[column]):
                while left and left[-1] < row + len(batch):
                    yield batch[0][left.pop() - row].as_py()
                row += len(batch)

    def stores(self, url: str, column: str) -> bool:
        """Returns True if a column with fields has any `bytes`, or the file's metadata do not tell."""
        with open_url(url) as file:
            metadata = pq.ParquetFile(file).metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        chunks = (group.column(number) for group in groups for number in range(metadata.num_columns))
        # Files without statistics may have recordings.
        return any(
            chunk.statistics is None
            or not chunk.statistics.has_null_count
            or chunk.statistics.null_count < chunk.num_values
            for chunk in chunks
            if chunk.path_in_schema == f"{column}.bytes"
        )


@dataclass(frozen=True)
class ArrowRows:
    """Arrow's streaming and file formats, with the functions of `ParquetRows`."""

    name = "Arrow"

    def describe(self, url: str) -> RowFile:
        _, schema = head = _arrow_head(url)
        # Rows are counted in a column that is cheap to read.
        plain = next((field.name for field in schema if not pa.types.is_nested(field.type)), str(schema.names[0]))
        rows = sum(map(len, _batches(url, head, [plain])))
        return RowFile(url, rows, rows if _is_remote(url) else 1, schema)

    def read_columns(self, url: str, columns: Sequence[str]) -> pa.Table:
        head = _arrow_head(url)
        fields = {column: column.partition(".") for column in columns}
        names = [name for name, _, _ in fields.values()]

        def chosen(rows: pa.RecordBatch | pa.Table) -> pa.Table:
            values = (pc.struct_field(rows[name], field) if field else rows[name] for name, _, field in fields.values())
            return pa.table(list(map(_checked, values)), names)

        return pa.concat_tables([chosen(head[1].empty_table()), *map(chosen, _batches(url, head, names))])

    def read_values(self, url: str, column: str, wanted: Sequence[int]) -> Iterator[Any]:
        first, left = 0, list(reversed(wanted))
        for batch in _batches(url, _arrow_head(url), [column]):
            if left[-1] < first + len(batch):
                values = _checked(batch.column(column))
                while left and left[-1] < first + len(batch):
                    yield values[left.pop() - first].as_py()
            first += len(batch)
            if not left:
                return
        refuse_too_few(first, wanted)

    def stores(self, url: str, column: str) -> bool:
        # A file on the Hub is not read, since that would download the complete file.
        recordings = None if _is_remote(url) else self.read_columns(url, [f"{column}.bytes"])[column]
        return recordings is None or recordings.null_count < len(recordings)


RowFormat = ParquetRows | ArrowRows


def in_parallel(call: Callable[[T], S], each: Iterable[T]) -> list[S]:
    """Returns the results of a call for each of some files or their parts, in order."""
    with ThreadPoolExecutor(PARALLEL_FILES) as pool:
        return list(pool.map(call, each))


def cut(files: Sequence[RowFile], first: int, end: int) -> Iterator[RowRange]:
    """Yields the parts of files with the rows `first` … `end` − 1 of all their rows."""
    start = 0
    for file in files:
        begins, ends = max(first - start, 0), min(end - start, file.rows)
        if begins < ends:
            yield file, begins, ends
        start += file.rows


def read_columns(
    row_format: RowFormat, parts: Sequence[RowRange], columns_of: Callable[[pa.Schema], Sequence[str]]
) -> list[pa.Table]:
    """Returns columns of each range of rows, see `ParquetRows.read_columns`. Raises OSError if a file cannot be read.

    `columns_of` returns the columns to read, by schema, since files of one split may have different columns.
    """

    def read(part: RowRange) -> pa.Table:
        described, first, end = part
        return row_format.read_columns(described.url, columns_of(described.schema)).slice(first, end - first)

    tables = [table.combine_chunks() for table in in_parallel(read, parts)]
    # Otherwise the process would keep the memory that reading has allocated.
    pa.default_memory_pool().release_unused()
    return tables


def locations(parts: Sequence[RowRange]) -> pa.Table:
    """Returns the locations of the recordings in ranges of rows, in the columns of LOCATION."""
    counts = [end - first for _, first, end in parts]
    files = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
    urls = pa.array([described.url for described, _, _ in parts])
    rows = np.concatenate([np.arange(first, end) for _, first, end in parts])
    return pa.table({FILE: pa.DictionaryArray.from_arrays(files, urls), ROW: rows}, schema=LOCATION)


def parsed(
    arrow: Sequence[pa.Table], parts: Sequence[RowRange], rules: TableRules, *, holds_recordings: bool
) -> list[ParsedTable]:
    """Returns ranges of rows as tables of text values, without their ids; labels are replaced by their names.

    `arrow` has columns of each range, see `read_columns`: the wanted ones that exist, and paths of recordings. For
    `holds_recordings` see `ParsedTable`. Raises DataError if a column is not text.
    """
    tables = []
    for table, (file, first, end) in zip(arrow, parts, strict=True):
        paths = path_column(table, rules.audio_column_name)
        _refuse_zeros(paths, rules.audio_column_name, file)
        given = {rules.audio_column_name: paths.to_pylist()}
        for name in table.column_names:
            if name not in given and name != "id":
                must_be_text = name == rules.text_column_name
                given[name] = as_text(table[name], name, file, must_be_text=must_be_text).fill_null("").to_pylist()
        none = [""] * (end - first)
        rows = enumerate(zip(*(given.get(name, none) for name in rules.wanted), strict=True), start=first + 1)
        columns = [name for name in file.schema.names if name != "id"]
        tables.append(ParsedTable(file.url, columns, rows, unit="row", holds_recordings=holds_recordings))
    return tables


def labels_of(name: str, schema: pa.Schema) -> list[str]:
    """Returns the names of the labels that a column of numbers has according to `datasets`."""
    described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return described.get(name, {}).get("names") or []


def as_text(values: pa.ChunkedArray, name: str, file: RowFile, *, must_be_text: bool = False) -> pa.ChunkedArray:
    """Returns the values of a file's column as text, labels as their names. Raises DataError if they cannot be text.

    Numbers are refused if text is required.
    """
    kind = values.type
    holds = f"{file.url}: the column {name!r} holds {kind}"
    try:
        if names := labels_of(name, file.schema):
            # A negative number means that there is no label.
            values = pa.array(names, pa.string()).take(pc.if_else(pc.less(values, 0), None, values).combine_chunks())
        elif pa.types.is_boolean(kind) or (must_be_text and (pa.types.is_primitive(kind) or pa.types.is_decimal(kind))):
            raise DataError(f"{holds}, not text: save it as text")
        elif pa.types.is_duration(kind):
            # As text, a duration would be a number in the column's own unit.
            raise DataError(f"{holds}: save it as a number of seconds")
        texts = values.cast(pa.string())
    except pa.ArrowException as error:
        raise DataError(f"{holds}, not text ({error}): save it as text") from None
    _refuse_zeros(texts, name, file)
    return texts if isinstance(texts, pa.ChunkedArray) else pa.chunked_array([texts])


def _refuse_zeros(texts: pa.ChunkedArray | pa.Array, name: str, file: RowFile) -> None:
    """Raises DataError for texts with NULs, which no text table can store."""
    if pc.any(pc.match_substring(texts, "\0")).as_py():
        raise DataError(f"{file.url}: the column {name!r} has a text with a NUL (U+0000), which is not text: fix it")


@dataclass(frozen=True)
class RowFileReader:
    """Reads the recordings of rows with columns of LOCATION; `files` reads recordings that a row only names.

    The paths of these are relative to the folder of the row's file.
    """

    row_format: RowFormat
    column: str
    files: FileReader

    def read(self, rows: Sequence[Row]) -> Iterator[bytes | AudioError]:
        return self.files.read_missing(zip(map(_located, rows), self._stored(rows), strict=True))

    def _stored(self, rows: Sequence[Row]) -> Iterator[bytes | None]:
        name = self.row_format.name
        for wanted in _ascending(rows):
            url = wanted[0][FILE]
            try:
                for value in self.row_format.read_values(url, self.column, [row[ROW] for row in wanted]):
                    recording = value.get("bytes") if isinstance(value, dict) else value
                    yield recording if isinstance(recording, bytes) else None
            except OSError as error:
                raise StorageError(
                    f"{url}: cannot be read here: {error}; every node must be able to read the folder of {name} files"
                ) from error
            except pa.ArrowException as error:
                raise DataError(f"{url}: this {name} file is damaged ({error}): fetch it again") from error


def _located(row: Row) -> Row:
    """Returns a row with the path of its recording made absolute, so that it is the same on every node."""
    # Paths in another user's data set on the Hub could name any file on the nodes.
    path = str(row["audio"]).lstrip("/") if is_hub_url(row[FILE]) else row["audio"]
    return {**row, "audio": absolute(base_of(row[FILE]), path)} if path else row


def _ascending(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yields runs of rows for each of which a file is read once; several runs if parts of a split are out of order."""
    run: list[Row] = []
    for row in rows:
        if run and (row[FILE] != run[-1][FILE] or row[ROW] <= run[-1][ROW]):
            yield run
            run = []
        run.append(row)
    if run:
        yield run


def refuse_too_few(rows: int, wanted: Sequence[int]) -> None:
    """Raises OSError if a file now has fewer rows than when its rows were located."""
    if wanted[-1] >= rows:
        raise OSError(f"it has {rows} rows, but row {wanted[-1]} is needed: it was replaced since")


def holds_recordings(column: str, schema: pa.Schema) -> bool:
    """Returns True for a column of encoded recordings or their paths, in the forms of `datasets` and others."""
    kind = schema.field(column).type
    fields = {field.name for field in kind} if pa.types.is_struct(kind) else set[str]()
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return bool(fields & {"bytes", "path"}) or is_binary or bool(paths_of(column, schema))


def paths_of(column: str, schema: pa.Schema) -> tuple[str, ...]:
    """Returns the column, or field of it, with the path of each recording; empty for recordings without paths."""
    kind = schema.field(column).type
    if pa.types.is_struct(kind):
        return (f"{column}.path",) if kind.get_field_index("path") >= 0 else ()
    # Polars writes string views, and pandas dictionaries for a categorical column.
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return (column,) if is_text else ()


def only_names(row_format: RowFormat, parts: Sequence[RowRange], column: str) -> bool:
    """Returns True if files only name their recordings, in a column with paths and without recordings."""
    for file in {described.url: described for described, _, _ in parts}.values():
        kind = file.schema.field(column).type
        if not paths_of(column, file.schema):
            return False
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and row_format.stores(file.url, column):
            return False
    return True


def path_column(table: pa.Table, column: str) -> pa.ChunkedArray | pa.Array:
    """Returns the paths from the result of `read_columns` for `paths_of`; "" for missing ones."""
    if column not in table.column_names:
        return pa.repeat("", len(table))
    paths = table[column]
    if pa.types.is_struct(paths.type):
        paths = pc.struct_field(paths, "path")
    return paths.cast(pa.string()).fill_null("")


def _arrow_head(url: str) -> tuple[bool, pa.Schema]:
    """Returns whether a file has the streaming format, and its schema."""
    with closing(_open(url)) as file:
        is_stream = bytes(file.read(len(MAGIC))) != MAGIC
        file.seek(0)
        return is_stream, (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(file).schema


def _batches(url: str, head: tuple[bool, pa.Schema], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields the batches of columns of a file."""
    is_stream, schema = head
    included = [schema.names.index(name) for name in columns]
    options = pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)
    with closing(_open(url)) as file:
        if is_stream:
            yield from pa.ipc.open_stream(file, options=options)
        else:
            reader = pa.ipc.open_file(file, options=options)
            yield from map(reader.get_batch, range(reader.num_record_batches))


def _checked(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    # Validated, since Arrow reads beyond a buffer if an offset is wrong.
    values.validate(full=True)
    return values


def _is_remote(url: str) -> bool:
    return "://" in url


def _open(url: str) -> Any:
    return open_url(url) if _is_remote(url) else pa.memory_map(url)


def saved_files(folder: Path) -> dict[str, list[str]]:
    """Returns the files of each split in a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote.

    A data set without splits is `train`. The result is empty for any other folder. Raises ValueError if the file that
    lists them is damaged.
    """
    if (listed := folder / _DATASET_DICT).is_file():
        names = json.loads(listed.read_text(encoding="utf-8"))["splits"]
        return {Path(name).name: _files_of_state(folder / Path(name).name) for name in names}
    return {"train": _files_of_state(folder)} if (folder / _STATE).is_file() else {}


def _files_of_state(folder: Path) -> list[str]:
    state = folder / _STATE
    try:
        named = [file["filename"] for file in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{state}: cannot be read ({error}): save the data set again") from error
    return [str(folder / Path(name).name) for name in named]
