"""Arrow files of recordings, as `Dataset.save_to_disk` writes them: Arrow's streaming format, or its file format.

A file of this node's disks is mapped into memory, so that only what is looked at of it is read. Of one on the Hub, the
file format gives each batch of rows by itself; a stream is read from its beginning, a batch at a time.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainers.data.sources.located_files import open_url
from trainers.data.sources.row_files.row_file import RowFile, refuse_too_few

# How a file of the file format begins, https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format.
MAGIC = b"ARROW1"
# What `datasets` names the files of a data set, and the splits of several, in.
_STATE, _DATASET_DICT = "state.json", "dataset_dict.json"


@dataclass(frozen=True)
class ArrowRows:
    """See `RowFormat`."""

    name = "Arrow"

    def describe(self, url: str) -> RowFile:
        with closing(_open(url)) as file:
            is_stream, schema = _is_stream(file), _schema(file)
        counts = [rows for rows, _ in _batches(url, schema, [_plain(schema)])]
        at_once = sum(counts) if is_stream else max(counts, default=0)
        return RowFile(url, sum(counts), at_once if _is_remote(url) else 1, schema)

    def read_columns(self, url: str, columns: Sequence[str]) -> pa.Table:
        names = [column.partition(".")[0] for column in columns]
        fields = [column.partition(".")[2] for column in columns]
        with closing(_open(url)) as file:
            schema = _schema(file)
        tables = []
        for _, read in _batches(url, schema, names):
            batch = read()
            tables.append(
                pa.table([_checked(_field_of(batch, *each)) for each in zip(names, fields, strict=True)], names)
            )
        empty = pa.table([pa.array([], _type_of(schema, *each)) for each in zip(names, fields, strict=True)], names)
        return pa.concat_tables([empty, *tables])

    def read_values(self, url: str, column: str, wanted: Sequence[int]) -> Iterator[Any]:
        with closing(_open(url)) as file:
            schema = _schema(file)
        first, left = 0, list(reversed(wanted))
        for rows, read in _batches(url, schema, [column]):
            if left[-1] < first + rows:
                values = _checked(read().column(column))
                while left and left[-1] < first + rows:
                    yield values[left.pop() - first].as_py()
            first += rows
            if not left:
                return
        refuse_too_few(first, wanted)

    def stores(self, url: str, column: str) -> bool:
        # Of a file on the Hub, all of it would be fetched.
        recordings = None if _is_remote(url) else self.read_columns(url, [f"{column}.bytes"])[column]
        return recordings is None or recordings.null_count < len(recordings)


def _batches(url: str, schema: pa.Schema, columns: Sequence[str]) -> Iterator[tuple[int, Callable[[], pa.RecordBatch]]]:
    """Of each batch of a file how many rows it has, and what reads columns of it."""

    def options(names: Sequence[str]) -> pa.ipc.IpcReadOptions:
        included = [schema.names.index(name) for name in names]
        return pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)

    with closing(_open(url)) as file:
        if _is_stream(file):
            for batch in pa.ipc.open_stream(file, options=options(columns)):
                yield len(batch), partial(_same, batch)
            return
        counted = pa.ipc.open_file(file, options=options([_plain(schema)]))
        reader = pa.ipc.open_file(file, options=options(columns))
        for number in range(counted.num_record_batches):
            yield counted.get_batch(number).num_rows, partial(reader.get_batch, number)


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _plain(schema: pa.Schema) -> str:
    """The column by which rows are counted: one that costs little to read."""
    return next((field.name for field in schema if not pa.types.is_nested(field.type)), str(schema.names[0]))


def _schema(file: Any) -> pa.Schema:
    schema = (pa.ipc.open_stream if _is_stream(file) else pa.ipc.open_file)(file).schema
    file.seek(0)
    return schema


def _is_stream(file: Any) -> bool:
    is_stream: bool = bytes(file.read(len(MAGIC))) != MAGIC
    file.seek(0)
    return is_stream


def _checked(values: pa.Array) -> pa.Array:
    # Arrow reads beyond a buffer where an offset is wrong.
    values.validate(full=True)
    return values


def _field_of(batch: pa.RecordBatch, column: str, field: str) -> pa.Array:
    return pc.struct_field(batch.column(column), field) if field else batch.column(column)


def _type_of(schema: pa.Schema, column: str, field: str) -> pa.DataType:
    kind = schema.field(column).type
    return kind.field(field).type if field else kind


def _is_remote(url: str) -> bool:
    return "://" in url


def _open(url: str) -> Any:
    return open_url(url) if _is_remote(url) else pa.memory_map(url)


def saved_files(folder: Path) -> dict[str, list[str]]:
    """The files of each split in a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote.

    A data set without splits is `train`. Empty: the folder is none of these.

    Raises:
        ValueError: what names the files is damaged.
    """
    if (whole := folder / _DATASET_DICT).is_file():
        names = json.loads(whole.read_text(encoding="utf-8"))["splits"]
        return {Path(name).name: _files_of_state(folder / Path(name).name) for name in names}
    return {"train": _files_of_state(folder)} if (folder / _STATE).is_file() else {}


def _files_of_state(folder: Path) -> list[str]:
    state = folder / _STATE
    try:
        named = [file["filename"] for file in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{state}: cannot be read ({error}): save the data set again") from error
    return [str(folder / Path(name).name) for name in named]
