"""Rows of audio folders, JSON and CSV, which name their recordings: `datasets` parses them, and opens no recording."""

import os
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from trainers.config.storage_location import HUB_SCHEME, is_absolute
from trainers.data.sources.row_files.row_file import holds_recordings, path_column
from trainers.errors import DataError

# Recordings that stand for all where it is asked whether a node can read them.
EXAMPLES = 4
ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class ListedRows:
    """The rows of a `datasets` builder.

    Attributes:
        audio: Column of the recordings.
        text: Column of the transcripts.
        require: Refuses column names among which these are not.
    """

    builder: Any
    audio: str
    text: str
    require: Callable[[Sequence[str]], None]

    def of_split(self, split: str) -> pa.Table:
        """Reads a split: recordings as paths or URLs of the Hub, transcripts, and ids where there are some.

        Raises:
            DataError: a column is missing or holds no paths, or a path leads out of a data set on the Hub.
            ValueError: a file cannot be parsed.
        """
        import datasets  # noqa: PLC0415

        # Else `datasets` decodes what is on the Hub.
        self.builder.config.decode_num_threads = 0
        stream = self.builder.as_streaming_dataset(split)
        stream = stream if stream.features is not None else stream._resolve_features()
        self.require(list(stream.features))
        if isinstance(stream.features[self.audio], datasets.Audio):
            # A path until a node reads it; as Audio, `datasets` would ask for what encodes recordings.
            stream = stream.cast_column(self.audio, datasets.Value("string"))
        columns = [self.audio, self.text, *(["id"] if "id" in stream.features and self.text != "id" else [])]
        batches = stream.select_columns(columns).with_format("arrow").iter(batch_size=ROWS_AT_ONCE)
        read = [batch.select(columns) for batch in batches]
        if not read:
            return pa.table({name: pa.array([], pa.string()) for name in columns})
        table = pa.concat_tables(read, promote_options="permissive")
        if not holds_recordings(self.audio, table.schema):
            raise DataError(
                f"data.audio_column_name: the column {self.audio!r} of {self.builder.base_path} holds "
                f"{table.schema.field(self.audio).type}, no paths of recordings"
            )
        paths = self._located(path_column(table, self.audio), self._folder_of(split))
        return table.set_column(columns.index(self.audio), self.audio, paths)

    def _folder_of(self, split: str) -> str:
        """The folder that all files of a split are in, from which relative paths count."""
        files = next(files for name, files in self.builder.config.data_files.items() if str(name) == split)
        scheme = HUB_SCHEME if files[0].startswith(HUB_SCHEME) else ""
        common: str = posixpath.commonpath([posixpath.dirname(file.removeprefix(scheme)) for file in files])
        return scheme + common

    def _located(self, paths: pa.ChunkedArray | pa.Array, folder: str) -> pa.ChunkedArray | pa.Array:
        """Paths as every node reads them."""
        given: list[str] = paths.to_pylist()
        if folder.startswith(HUB_SCHEME):
            return pa.array([self._on_hub(path, folder) if path else "" for path in given], pa.string())
        relative = [path for path in given if path and not is_absolute(path)]
        # As an earlier version had it, where the working directory has them.
        if not relative or Path(relative[0]).exists():
            return paths
        joined = [os.path.normpath(f"{folder}/{path}") if path and not is_absolute(path) else path for path in given]
        return pa.array(joined, pa.string())

    def _on_hub(self, path: str, folder: str) -> str:
        root = f"{self.builder.base_path.rstrip('/')}/"
        joined = posixpath.join(folder.removeprefix(HUB_SCHEME), path.removeprefix(HUB_SCHEME))
        url = path if path.startswith(root) else HUB_SCHEME + posixpath.normpath(joined)
        # What another writes there may name any file of the nodes.
        if not url.startswith(root) or ".." in url.split("/"):
            raise DataError(
                f"{folder}: the recording {path!r} is not one of the data set's own files: correct its path"
            )
        return url
