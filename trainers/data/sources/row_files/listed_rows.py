"""Reads tables of a data set that name its recordings: audio folders, JSON and CSV. `datasets` lists their files.

`datasets` reads files of one format and ignores those of others, which is reported.
"""

import gzip
import io
import json
import posixpath
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from trainers.config.storage_location import is_hub_url
from trainers.config.wording import counted
from trainers.data.sources.archives.source_files import SourceFiles
from trainers.data.sources.located_files import read_location
from trainers.data.sources.manifest import Manifest, TableRules
from trainers.data.sources.manifest_fields import in_utf_8, refuse_repeated
from trainers.data.sources.manifest_source import manifest_of_tables
from trainers.errors import DataError

FIELD = "data.dataset"
_FILE_NAME = "file_name"
# Options of a README that change the rows and columns of a data set's files, and the meaning of quotes in them.
_DECISIVE = (
    *("header", "names", "index_col", "usecols", "skiprows", "nrows", "skipfooter", "comment", "dialect", "field"),
    *("quotechar", "quoting", "escapechar", "doublequote", "lineterminator", "skipinitialspace", "on_bad_lines"),
    *("encoding", "encoding_errors", "drop_metadata", "metadata_filenames", "filters"),
)
# A .json may be a table or have settings, see `_is_table`.
_TABLE = re.compile(r"\.(csv|tsv|jsonl|ndjson|parquet|arrow)(\.(gz|bz2|xz|zst|lz4))?$", re.IGNORECASE)
_JSON = ".json"
# Maximum number of ignored files in a warning.
_SHOWN = 5


def read_listed(builder: Any, split: str, rules: TableRules, files: SourceFiles) -> Manifest:
    """Returns the rows of a split of a `datasets` builder, read like a manifest's.

    Raises:
        DataError: A table is missing or wrong, or its README requires it to be read in another way.
        StorageError: A server is not available.
    """
    _refuse_options(builder)
    tables = next(list(map(str, files)) for name, files in builder.config.data_files.items() if str(name) == split)
    if builder.name == "audiofolder":
        tables = _metadata_of(builder, tables)
        # The name that `datasets` gives the column of recordings.
        column = rules.audio_column_name.removesuffix(_FILE_NAME).rstrip("_")
        rules = replace(rules, audio_column_name=_FILE_NAME if column in ("", "audio") else f"{column}_{_FILE_NAME}")
    separator = getattr(builder.config, "sep", ",")
    if separator is not None and len(separator) != 1:
        raise DataError(
            f"the README of {builder.base_path} gives sep: {separator!r} for its tables, which is more than a "
            "character: separate their columns by a comma or a tab"
        )
    contents = [_readable(table, files) for table in tables]
    return manifest_of_tables(contents, rules, files.quoting, None if separator == "," else separator)


def _refuse_options(builder: Any) -> None:
    plain = type(builder.config)()
    changed = (name for name in _DECISIVE if getattr(builder.config, name, None) != getattr(plain, name, None))
    if (name := next(changed, None)) is not None:
        raise DataError(
            f"the README of {builder.base_path} gives {name}: {getattr(builder.config, name)!r} for its "
            "tables, which is not followed: write a manifest of its recordings, and name it as data.train"
        )


def _metadata_of(builder: Any, files: Sequence[str]) -> list[str]:
    """Returns the tables among the files of an audio folder."""
    found = [name for name in files if posixpath.basename(name) in builder.METADATA_FILENAMES]
    if not found:
        raise DataError(
            f"{builder.base_path}: no transcripts: write a metadata.csv or metadata.jsonl with the columns "
            f"{_FILE_NAME} and text into the folder of each split, next to its recordings, or name another table as "
            "data.train"
        )
    of_folders: dict[str, str] = {}
    for name in found:
        if (other := of_folders.setdefault(posixpath.dirname(name), name)) != name:
            raise DataError(f"{other} and {name} are tables of one folder: take one of them out")
    return found


def _readable(location: str, files: SourceFiles) -> tuple[str, bytes]:
    """Returns the content of a table of text, and its location without the suffix of its compression."""
    stem, ending = posixpath.splitext(location)
    if ending == ".parquet":
        table = pq.ParquetFile(io.BytesIO(read_location(location, files.storage_options))).read()
        refuse_repeated(location, table.column_names, table.column_names)
        return f"{location}.jsonl", "\n".join(json.dumps(row, default=_as_text) for row in table.to_pylist()).encode()
    if ending == ".gz":
        packed = read_location(location, files.storage_options)
        try:
            content = gzip.decompress(packed)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{location}: it is damaged ({error}): fetch it again") from None
        return stem, in_utf_8(location, content, files.encoding)
    if (text := files.read(location)) is None:
        raise DataError(f"{location}: no such file")
    return location, text


def _as_text(value: Any) -> str:
    # Bytes that are not UTF-8 become characters that are refused when the column is read.
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def refuse_outside(paths: Sequence[str], root: str, location: str) -> None:
    """Raises DataError for recordings outside a data set on the Hub, whose paths could name any file on the nodes."""
    root = f"{root.rstrip('/')}/"
    outside = (path for path in paths if not path.startswith(root) or ".." in path.split("/"))
    if (path := next(outside, None)) is not None:
        raise DataError(
            f"{FIELD}: {location}: the recording {path!r} is not one of the data set's own files: correct its path"
        )


def passed_over(base: str, read: Sequence[str], column: str, split: str | None = None) -> str:
    """Describes the tables of a split, or of all, that `datasets` leaves out, as it reads files of one kind only.

    Returns "" if there are none, or a README lists the files. The column of recordings identifies a .json as a table.
    """
    from datasets.data_files import DataFilesDict, get_data_patterns  # noqa: PLC0415

    if _names_files(base):
        return ""
    listed = DataFilesDict.from_patterns(get_data_patterns(base), base_path=base)
    found = {str(file) for name, files in listed.items() if split in (None, str(name)) for file in files}
    left = [name for name in sorted(found.difference(read)) if _is_table(name, read, column)]
    names = [posixpath.relpath(each, base) for each in (read[0], *left[:_SHOWN])]
    more = ", …" if len(left) > _SHOWN else ""
    told = (
        f"{FIELD}: {base}: {names[0]} is read, and {counted(len(left), 'table')} of other kinds would be ignored: "
        f"{', '.join(names[1:])}{more}; `datasets` reads files of one kind: if these have other rows, save all of "
        "them in one kind, with lower-case extensions, or write a manifest of them; else remove them"
    )
    return told if left else ""


def _names_files(base: str) -> bool:
    """Returns True if the README of a data set, at a path or on the Hub, lists the data set's files itself."""
    import fsspec  # noqa: PLC0415
    from datasets import config  # noqa: PLC0415
    from datasets.utils.metadata import MetadataConfigs  # noqa: PLC0415
    from huggingface_hub import DatasetCard  # noqa: PLC0415

    files, root = fsspec.url_to_fs(base)
    if files.exists(f"{root}/{config.REPOYAML_FILENAME}"):
        return True
    readme = f"{root}/{config.REPOCARD_FILENAME}"
    if not files.exists(readme):
        return False
    return bool(MetadataConfigs.from_dataset_card_data(DatasetCard(files.cat_file(readme).decode()).data))


def _is_table(name: str, read: Sequence[str], column: str) -> bool:
    stem, ending = posixpath.splitext(name)
    if ending.lower() != _JSON:
        return _TABLE.search(posixpath.basename(name)) is not None
    if is_hub_url(name):
        # Each file would be downloaded, and there may be one next to each recording.
        return stem in {posixpath.splitext(each)[0] for each in read}
    return f'"{column}"'.encode() in Path(name).read_bytes()
