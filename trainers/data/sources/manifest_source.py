"""Data source of manifests in Rayscribe's format and others, which list recordings in folders or buckets."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_location import MANIFEST, DataLocation
from trainers.config.parts.data_part import DataPart, FingerprintKind, Quoting
from trainers.config.storage_location import (
    StorageOptions,
    is_remote,
    is_url,
    is_web_url,
    unreadable_url,
    without_password,
)
from trainers.data.sources.archives.archive_path import is_archive, is_missing
from trainers.data.sources.archives.source_files import LocatedRows, SourceFiles
from trainers.data.sources.data_source import (
    SLICE,
    SPLITS,
    DataSource,
    SourceSplit,
    naming,
    print_warnings,
    with_columns,
    with_prefixes,
)
from trainers.data.sources.fingerprint import fingerprint_recordings, hash_of, hash_of_places
from trainers.data.sources.formats.known_formats import read_rows
from trainers.data.sources.manifest import Manifest, TableRules, join_tables, parse_table
from trainers.data.sources.manifest_fields import UTF_8, content_as_read, misread_texts
from trainers.errors import DataError, NotHereError
from trainers.storage import Storage
from trainers.storage.json_files import to_jsonl

# Number of recordings with which a node's access to those of a manifest is checked.
_EXAMPLES = 4
# Columns of ROW_SCHEMA, by the names of columns in manifests.
_WRITTEN = {"id": "id", "speaker": "speaker", "language": "language", "offset": "offset_s", "duration": "duration_s"}


class ManifestSource(DataSource):
    """The manifests of a config, one for each split."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(split for split in SPLITS if getattr(self.data, split) is not None)

    def open(self, split: str, fingerprint_cache: Storage | None) -> SourceSplit:
        field, where = f"data.{split}", DataLocation.parse(getattr(self.data, split))
        files = SourceFiles(self.storage_options, fingerprint_cache, self.data.encoding, self.data.quoting)
        rules = TableRules.of(self.data, split)
        if where.format == MANIFEST:
            manifest = open_manifest(field, where.path, rules, files)
        else:
            with naming(field):
                manifest = read_rows(where, split, files)
                refuse_unsupported(manifest.table, manifest.location)
            others = [f"{SLICE}{name}" for name in rules.slice_columns]
            names = [name for name in manifest.table.column_names if name in others or not name.startswith(SLICE)]
            manifest = replace(manifest, table=manifest.table.select(names))
        return source_of_rows(manifest, split, field, self.data, self.data.fingerprint, files)

    def refuse_missing(self, splits: Collection[str]) -> None:
        for split in self.splits:
            where = DataLocation.parse(getattr(self.data, split))
            if split in splits and where.format == MANIFEST and is_missing(where.path):
                raise NotHereError(f"data.{split}: {where.path}: no such file; {_fix(f'data.{split}')}")

    def truncated(self, counts: Mapping[str, int], folder: Path) -> DataPart:
        # Fingerprints of the recordings are not needed until they are prepared.
        plain = ManifestSource(self.data.model_copy(update={"fingerprint": "manifest"}), self.storage_options)
        manifests: dict[str, Any] = {"path_prefix": {}, "encoding": UTF_8}
        for split in self.splits:
            rows = plain.open(split, None).table.slice(0, counts[split]).to_pylist()
            manifests[split] = str(folder / f"{split}.jsonl")
            written = (as_written(row, self.data) for row in rows)
            Path(manifests[split]).write_text(to_jsonl(written, split), encoding="utf-8")
        return self.data.model_copy(update=manifests)


def as_written(row: Mapping[str, Any], data: DataPart) -> dict[str, Any]:
    """Returns a row of ROW_SCHEMA as a JSON lines manifest has it, in the columns that a data part names."""
    known = {column: row[name] for column, name in _WRITTEN.items() if row[name] is not None}
    slices = {name.removeprefix(SLICE): value for name, value in row.items() if name.startswith(SLICE) and value}
    return {**slices, **known, data.audio_column_name: row["audio"], data.text_column_name: row["text"]}


def open_mixed_sources(
    data: DataPart,
    locations: Mapping[str, str],
    *,
    storage_options: StorageOptions,
    fingerprint_cache: Storage | None = None,
) -> list[SourceSplit]:
    """Opens manifests of recordings to mix into clips, fingerprinted like training data; raises as `open_manifest`.

    `locations` are by the config's field that names them, which is used instead of a split's name.
    """
    sources = []
    files = SourceFiles(storage_options, fingerprint_cache, data.encoding, data.quoting)
    for name, location in locations.items():
        manifest = open_manifest(name, location, TableRules.of_recordings(data), files)
        sources.append(_fingerprinted(manifest, name, name, data.fingerprint, files))
    print_warnings(sources)
    return sources


def locate_mixed(
    field: str, location: str, data: DataPart, storage_options: StorageOptions, cache: Storage | None
) -> LocatedRows:
    """Locates the recordings of a manifest as in `open_mixed_sources`, with the same errors."""
    files = SourceFiles(storage_options, cache, data.encoding, data.quoting)
    return files.locate(open_manifest(field, location, TableRules.of_recordings(data), files).table, {})


def source_of_rows(
    manifest: Manifest, split: str, field: str, data: DataPart, kind: FingerprintKind, files: SourceFiles
) -> SourceSplit:
    """Returns a split of a manifest's rows.

    `field` is the config's field that names the manifest, for messages. Raises StorageError if a bucket cannot be read.
    """
    where, table, warnings = manifest.location, manifest.table, [*manifest.warnings]
    texts = table["text"].to_pylist() if data.encoding != UTF_8 else []
    if misread := misread_texts(texts, data.encoding):
        example, meant = misread[0]
        warnings.append(
            f"{where}: {len(misread)} of {len(texts)} texts are UTF-8 and were read as {data.encoding}, such as "
            f"{example!r} for {meant!r}: leave out data.encoding, or save all of them in one encoding"
        )
    if data.path_prefix:
        table, unused = with_prefixes(table, data.path_prefix)
        warnings += [f"{where}: no recording's path begins with {prefix}" for prefix in unused]
    source = _fingerprinted(replace(manifest, table=table, warnings=warnings), split, field, kind, files)
    return with_languages(source, use_column=data.use_language_column is not False)


def open_manifest(field: str, location: str, rules: TableRules, files: SourceFiles) -> Manifest:
    """Opens the manifest that a config's field names, at an absolute path or URL, or in an archive.

    Raises:
        NotHereError: The manifest is missing, or cannot be read on this machine.
        DataError: The manifest is wrong.
        StorageError: The bucket or the server is not available.
    """
    # Signed URLs have secrets in their query, and no file extension there.
    shown = without_password(location) if is_web_url(location) else location
    with naming(field):
        if is_archive(location) and files.is_archive_file(location):
            raise DataError(
                f"{location}: it is an archive: name the manifest in it, {location}/train.csv, or webdataset:"
            )
        try:
            content = files.read(location)
        except NotHereError as error:
            raise NotHereError(f"{error}; {_fix(field)}") from None
        if content is None:
            # Buckets look the same from all machines.
            kind = DataError if is_remote(location) else NotHereError
            raise kind(f"{shown}: no such file; {_fix(field)}")
        return manifest_of_tables([(shown, content)], rules, files.quoting)


def manifest_of_tables(
    contents: Sequence[tuple[str, bytes]], rules: TableRules, quoting: Quoting, delimiter: str | None = None
) -> Manifest:
    """Returns the rows of tables, each a location and a content; raises as `parse_table` and `join_tables`."""
    warnings: list[str] = []
    tables = [parse_table(*each, rules, quoting=quoting, delimiter=delimiter) for each in contents]
    table = join_tables(tables, rules, warnings.append)
    location = contents[0][0]
    refuse_unsupported(table, location)
    read = [content_as_read(*each, quoting) for each in contents]
    # The content of a single table is not hashed, so that earlier fingerprints remain valid.
    content = read[0] if len(read) == 1 else hash_of(*read).encode()
    if ignored := [name for each in tables for name in each.columns if name in rules.ignored_of_wanted]:
        content += f"\0ignored: {ignored}".encode()
    return Manifest(location, content, table, (rules.audio_column_name, rules.text_column_name), warnings)


def _fix(field: str) -> str:
    return f"give the path of a manifest (--set {field}=my/{field.rpartition('.')[2]}.csv)"


def with_languages(source: SourceSplit, *, use_column: bool) -> SourceSplit:
    """Returns the source with its clips' languages, which change its fingerprint; without them unless `use_column`."""
    languages = source.table["language"]
    if languages.null_count == len(languages):
        return source
    if use_column:
        return replace(source, fingerprint=hash_of(source.fingerprint, "language"))
    return replace(source, table=with_columns(source.table, language=pa.nulls(len(languages), pa.string())))


def _fingerprinted(
    manifest: Manifest, split: str, field: str, kind: FingerprintKind, files: SourceFiles
) -> SourceSplit:
    location, rows = manifest.location, files.locate(manifest.table, manifest.problems)
    fingerprints = fingerprint_recordings(kind, rows.files, location, files.storage_options, files.cache)
    warnings = [*manifest.warnings]
    if is_url(location) and kind != "manifest" and not any(fingerprints):
        warnings.append(
            f"{location}: its bucket cannot be listed, so the locations of recordings decide whether it is prepared "
            "again, not their contents"
        )
    # Recordings with the same contents are the same in any folder.
    is_content = kind == "content" and all(isinstance(each, str) for each in fingerprints)
    recordings = fingerprints if is_content else hash_of_places(rows.files, fingerprints)
    are_segments = manifest.table["offset_s"].null_count == 0
    return SourceSplit(
        split,
        location,
        rows.table,
        rows.reader,
        hash_of(manifest.content, manifest.columns, kind, recordings, are_segments),
        node_files=rows.files[:_EXAMPLES],
        warnings=[f"{field}: {line}" for line in warnings],
        recording_fingerprints={path: str(each) for path, each in zip(rows.files, fingerprints, strict=False)},
    )


def refuse_unsupported(table: pa.Table, where: str) -> None:
    """Raises DataError for recordings at URLs that no storage opens, which would all be reported as missing files."""
    urls = pc.filter(table["audio"], pc.match_substring(table["audio"], "://")).to_pylist()
    for url in urls:
        if problem := unreadable_url(url):
            raise DataError(f"{where}: recording {without_password(url)}: {problem}")
