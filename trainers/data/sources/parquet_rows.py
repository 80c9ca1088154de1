"""Rows of a data set's Parquet files: the driver reads transcripts, the node that prepares a row its recording."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainers.data.sources.recording_readers import FileReader, Row
from trainers.errors import AudioError, DataError, StorageError

# Columns that say where a row's recording is.
FILE, ROW = "parquet_file", "parquet_row"
LOCATION = pa.schema([(FILE, pa.dictionary(pa.int32(), pa.string())), (ROW, pa.int64())])
PARALLEL_FILES = 8
# A group of rows may hold gigabytes of audio: it is read through a buffer, a few recordings at a time.
BUFFER_BYTES = 4 * 1024 * 1024
RECORDINGS_AT_ONCE = 16


# A file, the first of its rows, and the one behind the last.
RowRange = tuple["ParquetFile", int, int]


@dataclass(frozen=True)
class ParquetFile:
    """A file of a data set at a path or a URL that fsspec opens (hf://datasets/…), as its footer describes it.

    `group_rows` are those of its largest group; what is read of a group is read from its first row on.
    """

    url: str
    rows: int
    group_rows: int
    schema: pa.Schema


def describe_files(urls: Sequence[str]) -> list[ParquetFile]:
    """Reads the footers of files, in their order. Raises OSError: a file cannot be read."""
    with ThreadPoolExecutor(PARALLEL_FILES) as pool:
        return list(pool.map(_describe, urls))


def cut(files: Sequence[ParquetFile], first: int, end: int) -> Iterator[RowRange]:
    """The parts of files that hold the rows `first` … `end` − 1 of all their rows."""
    start = 0
    for file in files:
        begins, ends = max(first - start, 0), min(end - start, file.rows)
        if begins < ends:
            yield file, begins, ends
        start += file.rows


def read_columns(parts: Sequence[RowRange], columns: Sequence[str]) -> pa.Table:
    """Reads columns of ranges of rows, without any other column's bytes; `audio.path` is one field of a column.

    Raises:
        OSError: a file cannot be read.
    """

    def read(part: RowRange) -> pa.Table:
        described, first, end = part
        with _open(described.url) as file:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            return parquet.read(columns=list(columns), use_threads=False).slice(first, end - first)

    with ThreadPoolExecutor(PARALLEL_FILES) as pool:
        table = pa.concat_tables(pool.map(read, parts), promote_options="permissive").combine_chunks()
    # What decoding took stays with the process otherwise.
    pa.default_memory_pool().release_unused()
    return table


def locations(parts: Sequence[RowRange]) -> pa.Table:
    """Where the recordings of ranges of rows are: columns of LOCATION."""
    counts = [end - first for _, first, end in parts]
    files = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
    urls = pa.array([described.url for described, _, _ in parts])
    rows = np.concatenate([np.arange(first, end) for _, first, end in parts])
    return pa.table({FILE: pa.DictionaryArray.from_arrays(files, urls), ROW: rows}, schema=LOCATION)


@dataclass(frozen=True)
class ParquetReader:
    """Reads the recordings of rows with columns of LOCATION, by `files` where a Parquet file only names them."""

    column: str
    files: FileReader

    def read(self, rows: Sequence[Row]) -> Iterator[bytes | AudioError]:
        return self.files.read_missing(zip(rows, self._stored(rows), strict=True))

    def _stored(self, rows: Sequence[Row]) -> Iterator[bytes | None]:
        for wanted in _ascending(rows):
            url = wanted[0][FILE]
            try:
                yield from _read_audio(url, self.column, [row[ROW] for row in wanted])
            except OSError as error:
                raise StorageError(
                    f"{url}: cannot be read here: {error}; a folder of Parquet files must be one that every node reads"
                ) from error
            except pa.ArrowException as error:
                raise DataError(f"{url}: this Parquet file is damaged ({error}): fetch it again") from error


def _ascending(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows in runs that a file is read through once for: parts of a split may be joined in any order."""
    run: list[Row] = []
    for row in rows:
        if run and (row[FILE] != run[-1][FILE] or row[ROW] <= run[-1][ROW]):
            yield run
            run = []
        run.append(row)
    if run:
        yield run


def _read_audio(url: str, column: str, wanted: Sequence[int]) -> Iterator[bytes | None]:
    with _open(url) as file:
        parquet = pq.ParquetFile(file, buffer_size=BUFFER_BYTES, page_checksum_verification=True)
        counts = [parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)]
        first_rows = [sum(counts[:number]) for number in range(len(counts))]
        groups = [
            number
            for number, (first, count) in enumerate(zip(first_rows, counts, strict=True))
            if first <= wanted[-1] and wanted[0] < first + count
        ]
        if wanted[-1] >= sum(counts):
            raise OSError(f"it has {sum(counts)} rows, and row {wanted[-1]} is wanted: it was replaced since")
        row, left = first_rows[groups[0]], list(reversed(wanted))
        for batch in parquet.iter_batches(RECORDINGS_AT_ONCE, row_groups=groups, columns=[column]):
            while left and left[-1] < row + len(batch):
                value = batch[0][left.pop() - row].as_py()
                value = value.get("bytes") if isinstance(value, dict) else value
                yield value if isinstance(value, bytes) else None
            row += len(batch)


def holds_recordings(column: str, schema: pa.Schema) -> bool:
    """Whether a column is of encoded recordings, or of their paths, as `datasets` and others write them."""
    kind = schema.field(column).type
    fields = {field.name for field in kind} if pa.types.is_struct(kind) else set[str]()
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(fields & {"bytes", "path"}) or is_binary or bool(paths_of(column, schema))


def paths_of(column: str, schema: pa.Schema) -> tuple[str, ...]:
    """The column, or field of it, that holds the path of each recording; none where only the recordings are there."""
    kind = schema.field(column).type
    if pa.types.is_struct(kind):
        return (f"{column}.path",) if kind.get_field_index("path") >= 0 else ()
    return (column,) if pa.types.is_string(kind) or pa.types.is_large_string(kind) else ()


def path_column(table: pa.Table, column: str) -> pa.ChunkedArray | pa.Array:
    """Paths of what `read_columns` gave for `paths_of`; "" where there is none."""
    if column not in table.column_names:
        return pa.repeat("", len(table))
    paths = table[column]
    if pa.types.is_struct(paths.type):
        paths = pc.struct_field(paths, "path")
    return paths.cast(pa.string()).fill_null("")


def _describe(url: str) -> ParquetFile:
    with _open(url) as file:
        parquet = pq.ParquetFile(file)
        metadata = parquet.metadata
        counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        return ParquetFile(url, metadata.num_rows, max(counts, default=0), parquet.schema_arrow)


def _open(url: str) -> Any:
    # It comes with `datasets`, which is not there where only a client runs.
    import fsspec  # noqa: PLC0415

    return fsspec.open(url, "rb").open()
