"""Parquet files of recordings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainers.data.sources.located_files import open_url
from trainers.data.sources.row_files.row_file import RowFile, refuse_too_few

# A group of rows may hold gigabytes of audio: it is read through a buffer, a few recordings at a time.
BUFFER_BYTES = 4 * 1024 * 1024
RECORDINGS_AT_ONCE = 16


@dataclass(frozen=True)
class ParquetRows:
    """See `RowFormat`; what a file says of itself is its footer."""

    name = "Parquet"

    def describe(self, url: str) -> RowFile:
        with open_url(url) as file:
            parquet = pq.ParquetFile(file)
            metadata = parquet.metadata
            counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            return RowFile(url, metadata.num_rows, max(counts, default=0), parquet.schema_arrow)

    def read_columns(self, url: str, columns: Sequence[str]) -> pa.Table:
        with open_url(url) as file:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            table = parquet.read(columns=list(columns), use_threads=False)
        # What is no UTF-8 is found here, and not where it is first used.
        table.validate(full=True)
        return table

    def read_values(self, url: str, column: str, wanted: Sequence[int]) -> Iterator[Any]:
        with open_url(url) as file:
            parquet = pq.ParquetFile(file, buffer_size=BUFFER_BYTES, page_checksum_verification=True)
            counts = [parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)]
            first_rows = [sum(counts[:number]) for number in range(len(counts))]
            groups = [
                number
                for number, (first, count) in enumerate(zip(first_rows, counts, strict=True))
                if first <= wanted[-1] and wanted[0] < first + count
            ]
            refuse_too_few(sum(counts), wanted)
            row, left = first_rows[groups[0]], list(reversed(wanted))
            for batch in parquet.iter_batches(RECORDINGS_AT_ONCE, row_groups=groups, columns=[column]):
                while left and left[-1] < row + len(batch):
                    yield batch[0][left.pop() - row].as_py()
                row += len(batch)

    def stores(self, url: str, column: str) -> bool:
        with open_url(url) as file:
            metadata = pq.ParquetFile(file).metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        chunks = (group.column(number) for group in groups for number in range(metadata.num_columns))
        # Files without statistics may have some.
        return any(
            chunk.statistics is None
            or not chunk.statistics.has_null_count
            or chunk.statistics.null_count < chunk.num_values
            for chunk in chunks
            if chunk.path_in_schema == f"{column}.bytes"
        )
