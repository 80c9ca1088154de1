"""Data sources: manifests, the demo corpus, a `datasets` data set. Each gives one table a split.

A table has the columns of `manifest.read_manifest`. Recordings in Parquet files have the columns of
`parquet_rows.LOCATION` too, and the nodes read them. Others that are not files that every node can open travel to the
nodes with the rows, in a column `audio_bytes`.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_part import DataPart, HubDatasetPart
from trainers.config.storage_location import StorageOptions, is_url, unsupported_url
from trainers.data.sources import parquet_rows
from trainers.data.sources.demo_corpus import DemoOptions, corpus_key, make_demo_corpus
from trainers.data.sources.fingerprint import MOST_ASKED_FOR, Kind, marks_of, settled_kind
from trainers.data.sources.located_files import read_location, reason_of
from trainers.data.sources.manifest import read_manifest
from trainers.errors import DataError
from trainers.storage import Storage
from trainers.storage.hub_errors import read_from_hub

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Manifest:
    """A manifest that was read.

    Attributes:
        location: Its path or URL.
        content: Its bytes.
        table: Its rows, see `manifest.read_manifest`.
        columns: Names of its columns of recordings and of transcripts; None where it has no transcripts.
    """

    location: str
    content: bytes
    table: pa.Table
    columns: tuple[str, str | None]


@dataclass(frozen=True)
class Source:
    """One split of a data source.

    Attributes:
        split: train, validation or test; or the field that names recordings which are mixed into clips.
        origin: Its name in messages: a path, a URL, a data set.
        table: Rows, see the module.
        fingerprint: Hash of everything that decides what the rows hold.
        rows_at_once: Rows whose recordings are best read together: a group of a Parquet file.
        note: What a user should know of the fingerprint; "" for nothing.
        marks: What of each recording is in the fingerprint, by its path.
    """

    split: str
    origin: str
    table: pa.Table
    fingerprint: str
    rows_at_once: int = 1
    note: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)


def open_sources(
    data: DataPart,
    *,
    storage_options: StorageOptions,
    splits: tuple[str, ...] = SPLITS,
    memory: Storage | None = None,
) -> list[Source]:
    """Opens the configured data source; gives a Source for each of the splits that it has.

    Args:
        data: The config's data part.
        storage_options: How s3:// is reached.
        splits: Those that are wanted.
        memory: The cache of prepared sets, where contents of recordings are remembered. None: they are read each time.

    Raises:
        DataError: a manifest is missing or wrong, or a data set cannot be opened.
        StorageError: a bucket cannot be read.
    """
    if data.demo is not None:
        options = DemoOptions(**data.demo.model_dump())
        folder = Path(tempfile.gettempdir()) / f"rayscribe-demo-{corpus_key(options)}"
        manifests: Mapping[str, str | None] = {
            split: str(path) for split, path in make_demo_corpus(folder, options).items()
        }
        # What it is synthesized from decides.
        plain = data.model_copy(update={"fingerprint": "manifest"})
        opened = _manifests(plain, manifests, splits, storage_options, memory)
        return [
            Source(
                source.split,
                f"demo {source.split}",
                _with_bytes(source.table),
                _hash(corpus_key(options), source.split),
            )
            for source in opened
        ]
    if data.dataset is not None:
        return [source for split in splits if (source := _hub_split(data, data.dataset, split)) is not None]
    manifests = {"train": data.train, "validation": data.validation, "test": data.test}
    return _manifests(data, manifests, splits, storage_options, memory)


def open_mixed_sources(
    data: DataPart, locations: Mapping[str, str], *, storage_options: StorageOptions, memory: Storage | None = None
) -> list[Source]:
    """Opens manifests of recordings that are mixed into clips, fingerprinted as training data is.

    Args:
        data: The config's data part.
        locations: Path or URL of each manifest, by the config's field that names it.
        storage_options: How s3:// is reached.
        memory: See `open_sources`.

    Returns:
        A Source for each, with the field's name in place of a split's.

    Raises:
        DataError: a manifest is missing or wrong.
        StorageError: a bucket cannot be read.
    """
    sources = []
    for name, location in locations.items():
        manifest = open_manifest(name, location, (data.audio_column_name, None), storage_options)
        kind = settled_kind(data.fingerprint or "auto", location)
        # `content` is asked for of training data, which may be files where these are objects.
        kind = "manifest" if kind == "content" and is_url(location) else kind
        sources.append(_source_of(manifest, name, kind, storage_options, memory))
    return sources


def open_manifest(
    field: str, location: str, columns: tuple[str, str | None], storage_options: StorageOptions
) -> Manifest:
    """Opens the manifest that a field of the config names.

    Args:
        field: The field's dotted name, for messages.
        location: Absolute path or URL of the manifest.
        columns: Its columns of recordings and of transcripts; None where there are no transcripts.
        storage_options: How s3:// is reached.

    Raises:
        DataError: it is missing or wrong.
        StorageError: the bucket cannot be read.
    """
    try:
        content = read_location(location, storage_options)
    except OSError as error:
        name = field.rpartition(".")[2]
        raise DataError(
            f"{field}: {location}: {reason_of(error)}; give the path of a manifest (--set {field}=my/{name}.csv)"
        ) from None
    audio, text = columns
    try:
        table = read_manifest(location, content, audio_column_name=audio, text_column_name=text)
    except DataError as error:
        raise DataError(f"{field}: {error}") from None
    _refuse_unsupported(table, f"{field}: {location}")
    return Manifest(location, content, table, columns)


def _manifests(
    data: DataPart,
    manifests: Mapping[str, str | None],
    splits: tuple[str, ...],
    storage_options: StorageOptions,
    memory: Storage | None,
) -> list[Source]:
    columns, sources = (data.audio_column_name, data.text_column_name), []
    for split in splits:
        if (location := manifests.get(split)) is not None:
            manifest = open_manifest(f"data.{split}", location, columns, storage_options)
            kind = settled_kind(data.fingerprint or "auto", location)
            sources.append(_source_of(manifest, split, kind, storage_options, memory))
    return sources


def _source_of(
    manifest: Manifest, name: str, kind: Kind, storage_options: StorageOptions, memory: Storage | None
) -> Source:
    location, paths = manifest.location, manifest.table["audio"].to_pylist()
    marks = marks_of(kind, paths, location, storage_options, memory)
    known = sum(each is not None for each in marks)
    note = f"size and time of {known} of {len(marks)} recordings decide whether it is prepared again"
    note = note if is_url(location) and len(marks) > MOST_ASKED_FOR else ""
    # Sizes and times were all that there was, and have no name in the hash.
    named = () if kind == "metadata" else (kind,)
    fingerprint = _hash(manifest.content, manifest.columns, *named, marks)
    by_path = {path: str(mark) for path, mark in zip(paths, marks, strict=False)}
    return Source(name, location, manifest.table, fingerprint, note=note, marks=by_path)


def _refuse_unsupported(table: pa.Table, where: str) -> None:
    """Refuses recordings at URLs that no storage opens: they would all be counted as files that are not there."""
    urls = pc.filter(table["audio"], pc.match_substring(table["audio"], "://")).to_pylist()
    for url in urls:
        if problem := unsupported_url(url):
            raise DataError(f"{where}: recording {url.partition('?')[0]}: {problem}")


def _with_bytes(table: pa.Table) -> pa.Table:
    recordings = [Path(path).read_bytes() for path in table["audio"].to_pylist()]
    return table.append_column("audio_bytes", pa.array(recordings, pa.large_binary()))


def _hub_split(data: DataPart, part: HubDatasetPart, split: str) -> Source | None:
    name = getattr(part, f"{split}_split")
    if name is None:
        return None
    what = f"data.dataset: {part.name} ({part.config_name}), split {name}"
    try:
        return read_from_hub(lambda: _load_hub_split(data, part, split, name), what)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{what}: {error}") from error


def _load_hub_split(data: DataPart, part: HubDatasetPart, split: str, name: str) -> Source:
    # The client side imports this module's neighbors; `datasets` alone takes two seconds.
    import datasets  # noqa: PLC0415

    config_name = _config_name(part)
    builder = datasets.load_dataset_builder(part.name, config_name, revision=part.revision)
    if _is_parquet(builder):
        return _parquet_split(data, part, split, builder)
    loaded = datasets.load_dataset(part.name, config_name, split=name, revision=part.revision)
    _require_columns(data, part, loaded.column_names)
    plain = loaded.cast_column(data.audio_column_name, datasets.Audio(decode=False)).with_format("arrow")
    arrow: pa.Table = plain[:]
    audio = arrow[data.audio_column_name]
    table = _hub_table(arrow, data, name, _field(audio, "path", pa.string()).fill_null(""))
    # Not cast: a copy of it would hold all recordings in memory, which are on the disk.
    table = table.append_column("audio_bytes", _field(audio, "bytes", audio.type.field("bytes").type))
    return _hub_source(data, part, name, split, table, fingerprint_of(loaded))


def _is_parquet(builder: Any) -> bool:
    from datasets.packaged_modules.parquet.parquet import Parquet  # noqa: PLC0415

    return isinstance(builder, Parquet)


def _parquet_split(data: DataPart, part: HubDatasetPart, split: str, builder: Any) -> Source:
    """A split whose recordings the nodes read themselves; here only its transcripts are read."""
    import datasets  # noqa: PLC0415

    name, audio = getattr(part, f"{split}_split"), data.audio_column_name
    splits = {str(each): urls for each, urls in builder.config.data_files.items()}
    spec = "+".join(splits) if name == "all" else name
    wanted = dict.fromkeys(re.split(r"[\[(]", each)[0].strip() for each in spec.split("+"))
    unknown = [each for each in wanted if each not in splits]
    if unknown:
        raise ValueError(f"there is no split {unknown[0]!r}; there are {', '.join(splits)}")
    files = {each: parquet_rows.describe_files(splits[each]) for each in wanted}
    lengths = {each: sum(file.rows for file in of_split) for each, of_split in files.items()}
    parts = [
        piece
        for absolute in datasets.ReadInstruction.from_spec(spec).to_absolute(lengths)
        for piece in parquet_rows.cut(files[absolute.splitname], absolute.from_, absolute.to)
    ]
    schema = parts[0][0].schema
    _require_columns(data, part, schema.names)
    ids = [each for each in ("id",) if each in schema.names]
    arrow = parquet_rows.read_columns(parts, [data.text_column_name, *ids, *parquet_rows.paths_of(audio, schema)])
    table = _hub_table(arrow, data, name, parquet_rows.path_column(arrow, audio))
    located = parquet_rows.locations(parts, audio)
    for column in located.column_names:
        table = table.append_column(column, located[column])
    source = _hub_source(data, part, name, split, table, builder._get_dataset_fingerprint(spec))
    return replace(source, rows_at_once=max(file.group_rows for file, _, _ in parts))


def _require_columns(data: DataPart, part: HubDatasetPart, names: Sequence[str]) -> None:
    for name in ("audio_column_name", "text_column_name"):
        if getattr(data, name) not in names:
            raise DataError(
                f"data.{name}: {part.name} has no column {getattr(data, name)!r}; it has {', '.join(names)}"
            )


def _hub_table(arrow: pa.Table, data: DataPart, name: str, paths: pa.ChunkedArray | pa.Array) -> pa.Table:
    count = len(arrow)
    rows = pa.array(np.arange(count, dtype=np.int64))
    numbers = pc.utf8_lpad(rows.cast(pa.string()), 8, "0")
    return pa.table(
        {
            "row": rows,
            "id": arrow["id"].cast(pa.string())
            if _unique(arrow, "id")
            else pc.binary_join_element_wise(name, numbers, "-"),
            "audio": paths,
            "text": arrow[data.text_column_name].cast(pa.string()).fill_null(""),
            "speaker": pa.nulls(count, pa.string()),
            "duration_s": pa.nulls(count, pa.float64()),
            "language": pa.nulls(count, pa.string()),
        }
    )


def _hub_source(
    data: DataPart, part: HubDatasetPart, name: str, split: str, table: pa.Table, fingerprint: str
) -> Source:
    columns = (data.audio_column_name, data.text_column_name)
    return Source(split, f"{part.name} {name}", table, _hash(fingerprint, part.name, name, columns))


def fingerprint_of(loaded: Any) -> str:
    """Hash of a `datasets.Dataset`'s content and history; `datasets` has no public name for it."""
    fingerprint: str = loaded._fingerprint
    return fingerprint


def _config_name(part: HubDatasetPart) -> str | None:
    import datasets  # noqa: PLC0415

    if part.config_name is None:
        return None
    names = datasets.get_dataset_config_names(part.name, revision=part.revision)
    if part.config_name in names:
        return str(part.config_name)
    near = [name for name in names if name.startswith(f"{part.config_name}_")]
    if len(near) != 1:
        raise DataError(
            f"data.dataset.config_name: {part.name} has no config {part.config_name!r}; it has {', '.join(names)}"
        )
    return str(near[0])


def _field(column: pa.ChunkedArray, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """A field of a struct column, chunk by chunk: joined, more than 2 GB of audio would overflow its offsets."""
    return pa.chunked_array([chunk.field(name).cast(kind) for chunk in column.chunks], kind)


def _unique(table: pa.Table, column: str) -> bool:
    return column in table.column_names and len(table[column].unique()) == len(table)


def _hash(*parts: object) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else json.dumps(part, default=str).encode())
        digest.update(b"\0")
    return digest.hexdigest()
