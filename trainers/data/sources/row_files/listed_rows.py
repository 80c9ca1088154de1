"""Tables of a data set that name its recordings: audio folders, JSON and CSV. `datasets` says which files they are."""

import bz2
import gzip
import io
import json
import lzma
import posixpath
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq

from trainers.data.sources.archives.joined_streams import JoinedStreams
from trainers.data.sources.archives.source_files import SourceFiles
from trainers.data.sources.located_files import read_location
from trainers.data.sources.manifest import TableRules
from trainers.data.sources.manifest_fields import in_utf_8
from trainers.data.sources.manifest_source import Manifest, manifest_of_tables
from trainers.errors import DataError

FIELD = "data.dataset"
_FILE_NAME = "file_name"
_UNPACKERS: Mapping[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": lambda content: JoinedStreams.opened(io.BytesIO(content), bz2.BZ2Decompressor).read(),
    ".xz": lambda content: JoinedStreams.opened(io.BytesIO(content), lzma.LZMADecompressor).read(),
}
# Options of a README that say which rows and columns the files of a data set have, and what quotes mean in them.
_DECISIVE = (
    *("header", "names", "index_col", "usecols", "skiprows", "nrows", "skipfooter", "comment", "dialect", "field"),
    *("quotechar", "quoting", "escapechar", "doublequote", "lineterminator", "skipinitialspace", "on_bad_lines"),
    *("encoding", "encoding_errors", "drop_metadata", "metadata_filenames", "filters"),
)


def read_listed(builder: Any, split: str, rules: TableRules, files: SourceFiles) -> Manifest:
    """The rows of a split of a `datasets` builder, read as a manifest's are.

    Raises:
        DataError: a table is missing or wrong, its README says that it is to be read in another way.
        StorageError: a server cannot be read.
    """
    _refuse_options(builder)
    tables = next(list(map(str, files)) for name, files in builder.config.data_files.items() if str(name) == split)
    if builder.name == "audiofolder":
        tables = _metadata_of(builder, tables)
        # As `datasets` names the column of recordings.
        column = rules.audio_column_name.removesuffix(_FILE_NAME).rstrip("_")
        rules = replace(rules, audio_column_name=_FILE_NAME if column in ("", "audio") else f"{column}_{_FILE_NAME}")
    separator = getattr(builder.config, "sep", ",")
    if separator is not None and len(separator) != 1:
        raise DataError(
            f"{FIELD}: the README of {builder.base_path} gives sep: {separator!r} for its tables, which is more than a "
            "character: separate their columns by a comma or a tab"
        )
    contents = [_readable(table, files) for table in tables]
    return manifest_of_tables(FIELD, contents, rules, files.quoting, None if separator == "," else separator)


def _refuse_options(builder: Any) -> None:
    plain = type(builder.config)()
    changed = (name for name in _DECISIVE if getattr(builder.config, name, None) != getattr(plain, name, None))
    if (name := next(changed, None)) is not None:
        raise DataError(
            f"{FIELD}: the README of {builder.base_path} gives {name}: {getattr(builder.config, name)!r} for its "
            "tables, which is not followed: write a manifest of its recordings, and name it as data.train"
        )


def _metadata_of(builder: Any, files: Sequence[str]) -> list[str]:
    """The tables among the files of an audio folder."""
    found = [name for name in files if posixpath.basename(name) in builder.METADATA_FILENAMES]
    if not found:
        raise DataError(
            f"{FIELD}: {builder.base_path}: no transcripts: write a metadata.csv or metadata.jsonl with the columns "
            f"{_FILE_NAME} and text into the folder of each split, next to its recordings, or name another table as "
            "data.train"
        )
    of_folders: dict[str, str] = {}
    for name in found:
        if (other := of_folders.setdefault(posixpath.dirname(name), name)) != name:
            raise DataError(f"{FIELD}: {other} and {name} are tables of one folder: take one of them out")
    return found


def _readable(location: str, files: SourceFiles) -> tuple[str, bytes]:
    """The content of a table of text, and its location without the ending of what compresses it."""
    stem, ending = posixpath.splitext(location)
    if ending == ".parquet":
        table = pq.ParquetFile(io.BytesIO(read_location(location, files.storage_options))).read()
        if repeated := [name for name in table.column_names if table.column_names.count(name) > 1]:
            raise DataError(f"{FIELD}: {location}: the column {repeated[0]!r} is there twice: rename one of them")
        return f"{location}.jsonl", "\n".join(json.dumps(row, default=_as_text) for row in table.to_pylist()).encode()
    if ending not in _UNPACKERS:
        content = files.read(location)
        if content is None:
            raise DataError(f"{FIELD}: {location}: no such file")
        return location, content
    packed = read_location(location, files.storage_options)
    try:
        content = _UNPACKERS[ending](packed)
    except (EOFError, OSError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise DataError(f"{FIELD}: {location}: it is damaged ({error}): fetch it again") from None
    return stem, in_utf_8(location, content, files.encoding)


def _as_text(value: Any) -> str:
    # What is no UTF-8 has characters that are refused where the column is read.
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def refuse_outside(paths: Sequence[str], root: str, location: str) -> None:
    """Refuses recordings out of a data set on the Hub: what another writes there may name any file of the nodes.

    Raises:
        DataError: there is one; names it.
    """
    root = f"{root.rstrip('/')}/"
    outside = (path for path in paths if not path.startswith(root) or ".." in path.split("/"))
    if (path := next(outside, None)) is not None:
        raise DataError(
            f"{FIELD}: {location}: the recording {path!r} is not one of the data set's own files: correct its path"
        )
