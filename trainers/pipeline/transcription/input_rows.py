"""Opens the rows to transcribe, from recordings, folders of recordings, or a manifest."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pyarrow as pa

from trainers.config.parts.data_location import MANIFEST, DataLocation, with_path
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions, in_home, is_remote, unreadable_url
from trainers.data.sources.archives.archive_path import is_missing
from trainers.data.sources.archives.source_files import LocatedRows, SourceFiles
from trainers.data.sources.data_source import ROW_SCHEMA, table_of, with_prefixes
from trainers.data.sources.formats.known_formats import read_rows
from trainers.data.sources.manifest import TableRules
from trainers.data.sources.manifest_fields import AUDIO_ENDINGS
from trainers.data.sources.manifest_source import open_manifest
from trainers.errors import ConfigError, DataError

ARGUMENT = "FILES"
MANIFEST_ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
# Tables in formats that manifests cannot have, and compressed manifests.
_OTHER_TABLE = re.compile(r".*\.(parquet|arrow|feather|xlsx?|ods|(csv|tsv|jsonl?)\.(gz|bz2|xz|zst|zip))", re.IGNORECASE)
# Column with the names of output files.
NAME = pa.field("name", pa.string())


def is_manifest(text: str) -> bool:
    """Returns True if a location is a table, not a recording."""
    return DataLocation.parse(text).format != MANIFEST or text.lower().endswith(MANIFEST_ENDINGS)


def open_rows(inputs: Sequence[str], data: DataPart, storage_options: StorageOptions) -> LocatedRows:
    """Opens the rows of recordings, folders or a manifest; adds a column with a name for each row's output."""
    files = SourceFiles(storage_options, None, data.encoding, data.quoting)
    if not any(map(is_manifest, inputs)):
        return _named(files.locate(table_of(_recordings(inputs)), {}))
    if len(inputs) > 1:
        raise ConfigError(f"{ARGUMENT}: {', '.join(inputs)}: give one manifest, or recordings")
    where = DataLocation.parse(with_path(inputs[0], _absolute))
    if where.format == MANIFEST:
        if files.read(where.path) is None:
            raise DataError(f"{ARGUMENT}: {where.path}: no such manifest: name one that exists")
        rules = replace(TableRules.of_recordings(data), use_languages=data.use_language_column is not False)
        manifest = open_manifest(ARGUMENT, where.path, rules, files)
        table, problems = manifest.table, manifest.problems
    else:
        rows = read_rows(where, "test", files)
        table, problems = rows.table, rows.problems
    table, _ = with_prefixes(table, data.path_prefix)
    if data.use_language_column is False:
        place = ROW_SCHEMA.get_field_index("language")
        table = table.set_column(place, ROW_SCHEMA.field(place), pa.nulls(len(table), pa.string()))
    return _named(files.locate(table, problems))


def refuse_missing(locations: Sequence[str]) -> None:
    """Raises DataError if all recordings are missing; some may be missing."""
    if locations and all(map(is_missing, locations)):
        more = f" (none of the {len(locations)} exists)" if len(locations) > 1 else ""
        raise DataError(f"{ARGUMENT}: {locations[0]}: no such file{more}: name recordings that exist")


def _recordings(inputs: Sequence[str]) -> list[dict[str, str]]:
    found: dict[str, str] = {}
    for text in inputs:
        is_folder = not is_remote(text) and in_home(text).is_dir()
        if _OTHER_TABLE.fullmatch(text) and not is_folder:
            raise ConfigError(
                f"{ARGUMENT}: {text}: a table is read as {', '.join(MANIFEST_ENDINGS)}, and not compressed: save "
                "its rows as one of them"
            )
        if not is_folder:
            if problem := unreadable_url(text):
                raise ConfigError(f"{ARGUMENT}: {text}: {problem}")
            found[text] = _absolute(text)
            continue
        inside = sorted(path for path in in_home(text).rglob("*") if path.suffix.lower()[1:] in AUDIO_ENDINGS)
        if not inside:
            raise ConfigError(f"{ARGUMENT}: {text}: a folder without recordings (*.{', *.'.join(AUDIO_ENDINGS)})")
        found |= {str(path): str(path.absolute()) for path in inside}
    return [{"id": name, "audio": location, "text": ""} for name, location in found.items()]


def _absolute(path: str) -> str:
    return path if is_remote(path) else str(Path(in_home(path)).absolute())


def _named(rows: LocatedRows) -> LocatedRows:
    names = pa.array(names_of(rows.table["id"].to_pylist()), pa.string())
    return LocatedRows(rows.table.append_column(NAME, names), rows.reader, rows.files)


def names_of(ids: Sequence[str]) -> list[str]:
    """Returns a unique relative path for each id, without a recording's extension unless that is ambiguous."""
    full = [*map(_path_of, ids)]
    short = [str(path.with_suffix("") if path.suffix.lower()[1:] in AUDIO_ENDINGS else path) for path in full]
    short_counts = Counter(short)
    found: dict[str, None] = {}
    for row, (few, name) in enumerate(zip(short, map(str, full), strict=True)):
        chosen = few if short_counts[few] == 1 else name
        while chosen in found:
            chosen = f"{chosen}-{row}"
        found[chosen] = None
    return [*found]


def _path_of(name: str) -> PurePosixPath:
    path = name.partition("://")[2] or name
    return PurePosixPath(*([part for part in path.split("/") if part not in ("", ".", "..")] or ["recording"]))
