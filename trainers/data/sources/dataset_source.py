"""Data source `dataset:`: data sets that `datasets.load_dataset` opens, from the Hub or a folder, or saved to disk.

`datasets` lists the files of a split. The driver reads their tables as it reads manifests, and each node the recordings
of its rows: from Parquet and Arrow files by file and row, otherwise by path. Data that `datasets` itself would decode
is refused.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_part import DataPart, HubDatasetPart
from trainers.config.storage_location import is_hub_url, is_remote
from trainers.data.sources.archives.source_files import SourceFiles
from trainers.data.sources.data_source import SPLITS, DataSource, SourceSplit, naming, with_all_offsets, with_columns
from trainers.data.sources.fingerprint import fingerprint_recordings, hash_of
from trainers.data.sources.manifest import Manifest, TableRules, ids_of_paths, join_tables, require_column
from trainers.data.sources.manifest_fields import refuse_repeated
from trainers.data.sources.manifest_source import source_of_rows, with_languages
from trainers.data.sources.recording_readers import FileReader
from trainers.data.sources.row_files import row_file
from trainers.data.sources.row_files.listed_rows import (
    FIELD,
    passed_over,
    read_listed,
    refuse_outside,
)
from trainers.data.sources.row_files.row_file import ArrowRows, ParquetRows, RowFileReader, RowFormat, saved_files
from trainers.errors import DataError
from trainers.storage import Storage
from trainers.storage.hub_errors import read_from_hub

# Formats of files that nodes read by row, by the builder of `datasets`.
_ROW_FORMATS: Mapping[str, RowFormat] = {"parquet": ParquetRows(), "arrow": ArrowRows()}
# Archives from which `datasets` extracts recordings, to decode them.
_PACKED = (".zip", ".tar.gz", ".tgz")


class DatasetSource(DataSource):
    """The data set of a config."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(split for split in SPLITS if self._name_of(split) is not None)

    @property
    def listing_requires_job(self) -> str:
        name = self._part.name
        reason = f"data.dataset.name: {name} is not a folder here; it is opened where the job runs"
        return "" if Path(name).is_dir() else reason

    def open(self, split: str, fingerprint_cache: Storage | None) -> SourceSplit:
        part, name = self._part, self._name_of(split)
        what = f"data.dataset: {part.name} ({part.config_name}), split {name}"
        files = SourceFiles(self.storage_options, fingerprint_cache, self.data.encoding, self.data.quoting)
        try:
            return read_from_hub(lambda: self._load(split, str(name), files), what)
        except (OSError, ValueError, RuntimeError) as error:
            raise DataError(f"{what}: {error}") from error

    def truncated(self, counts: Mapping[str, int], folder: Path) -> DataPart:
        names = {split: self._name_of(split) for split in counts}
        cut = {f"{split}_split": _first_of(name, counts[split]) for split, name in names.items() if name}
        return self.data.model_copy(update={"dataset": self._part.model_copy(update=cut)})

    @property
    def _part(self) -> HubDatasetPart:
        assert self.data.dataset is not None
        return self.data.dataset

    def _name_of(self, split: str) -> str | None:
        name: str | None = getattr(self._part, f"{split}_split")
        return name

    def _load(self, split: str, name: str, files: SourceFiles) -> SourceSplit:
        # Imported here because clients import neighbors of this module, and `datasets` takes two seconds to load.
        import datasets  # noqa: PLC0415

        part = self._part
        config_name = _config_name(part)
        builder = datasets.load_dataset_builder(part.name, config_name, revision=part.revision)
        row_format = _ROW_FORMATS.get(builder.name)
        if row_format is None and (problem := _unread(builder, split)):
            raise ValueError(problem)
        listed = _files_of(builder, part.name, self.data.audio_column_name)
        spec = "+".join(listed) if name == "all" else name
        if unknown := next((each for each in _named_in(spec) if each not in listed), None):
            other = "" if split == "train" else ", or to null to do without"
            raise ValueError(
                f"there is no split {unknown!r}; there are {', '.join(listed)}: set data.dataset.{split}_split to one "
                f"of them{other}"
            )
        named = "+".join(map(str, builder.config.data_files)) if name == "all" else name
        columns = (self.data.audio_column_name, self.data.text_column_name)
        identity = hash_of(builder._get_dataset_fingerprint(named), part.name, name, columns)
        if row_format is None:
            source = self._split_of_tables(split, spec, builder, files)
        else:
            parts = _parts_of(spec, listed, row_format)
            source = self._split_of_files(split, parts, row_format, builder, identity, files)
        if is_hub_url(builder.base_path or "") and builder.name != "audiofolder":
            for each in dict.fromkeys(_named_in(spec)):
                # Only a warning, since many data sets have the same table twice on purpose.
                if told := passed_over(builder.base_path, [*map(str, listed[each])], self.data.audio_column_name, each):
                    source = replace(source, warnings=[*source.warnings, told])
        return replace(source, origin=f"{part.name} {name}")

    def _split_of_tables(self, split: str, spec: str, builder: Any, files: SourceFiles) -> SourceSplit:
        """Returns a split of rows in text files, which only name their recordings."""
        rules = TableRules.of(self.data, split)
        with naming(FIELD):
            read = {each: read_listed(builder, each, rules, files) for each in dict.fromkeys(_named_in(spec))}
        pieces = _pieces(spec, {each: len(manifest.table) for each, manifest in read.items()})
        table = pa.concat_tables([read[piece].table.slice(first, end - first) for piece, first, end in pieces])
        first = next(iter(read.values()))
        joined = replace(
            first,
            content=hash_of(pieces, *(manifest.content for manifest in read.values())).encode(),
            table=_renumbered(table, ids_of_paths(table["id"])),
            warnings=[line for manifest in read.values() for line in manifest.warnings],
        )
        return self._source_of(joined, split, builder, files)

    def _source_of(self, manifest: Manifest, split: str, builder: Any, files: SourceFiles) -> SourceSplit:
        """Returns a split of rows that only name their recordings."""
        if is_hub_url(builder.base_path):
            refuse_outside(manifest.table["audio"].to_pylist(), builder.base_path, manifest.location)
        # The URLs of a data set on the Hub include the revision.
        kind = "manifest" if is_hub_url(manifest.location) else self.data.fingerprint
        return source_of_rows(manifest, split, FIELD, self.data, kind, files)

    def _split_of_files(
        self,
        split: str,
        parts: Sequence[row_file.RowRange],
        row_format: RowFormat,
        builder: Any,
        identity: str,
        files: SourceFiles,
    ) -> SourceSplit:
        """Returns a split of rows in files that nodes read by row, and that contain recordings or only name them."""
        audio, rules = self.data.audio_column_name, TableRules.of(self.data, split)
        files_read = [file for file, _, _ in parts]
        _refuse_schemas(files_read, rules)
        only_names = row_file.only_names(row_format, parts, audio)
        table, warnings = self._rows(split, parts, row_format, rules, only_names=only_names)
        names = [name for file in files_read for name in file.schema.names]
        marks = sorted(rules.ignored_of_wanted.intersection(names))
        here = [url for url in dict.fromkeys(file.url for file in files_read) if not is_remote(url)]
        cached = (f"{self._part.name} {split}", files.storage_options, files.cache)
        marks += fingerprint_recordings(self.data.fingerprint, here, *cached)
        if only_names:
            columns = (audio, self.data.text_column_name)
            manifest = Manifest(parts[0][0].url, hash_of(identity, *marks).encode(), table, columns, warnings)
            return self._source_of(manifest, split, builder, files)
        for column in (located := row_file.locations(parts)).column_names:
            table = table.append_column(column, located[column])
        marks += ["segments"] if table["offset_s"].null_count == 0 else []
        source = SourceSplit(
            split,
            self._part.name,
            table,
            RowFileReader(row_format, audio, FileReader(self.storage_options)),
            hash_of(identity, *marks),
            node_files=list(dict.fromkeys(file.url for file, _, _ in parts)),
            rows_at_once=max(file.group_rows for file, _, _ in parts),
            warnings=[f"{FIELD}: {line}" for line in warnings],
        )
        return with_languages(source, use_column=rules.use_languages)

    def _rows(
        self,
        split: str,
        parts: Sequence[row_file.RowRange],
        row_format: RowFormat,
        rules: TableRules,
        *,
        only_names: bool,
    ) -> tuple[pa.Table, list[str]]:
        """Returns ranges of rows of files, by the rules for all tables, and warnings; numbers rows if ids repeat."""
        audio, warnings = rules.audio_column_name, list[str]()

        def columns_of(schema: pa.Schema) -> list[str]:
            wanted = (name for name in dict.fromkeys(rules.wanted) if name in schema.names and name != audio)
            return [*wanted, *row_file.paths_of(audio, schema)]

        arrow = row_file.read_columns(row_format, parts, columns_of)
        have_ids = "id" in rules.wanted and all("id" in each.column_names for each in arrow)
        with naming(FIELD):
            tables = row_file.parsed(arrow, parts, rules, holds_recordings=not only_names)
            table = join_tables(tables, rules, warnings.append)
            of_files = zip(arrow, parts, strict=True) if have_ids else ()
            ids = [row_file.as_text(each["id"], "id", file) for each, (file, _, _) in of_files]
        given = pa.chunked_array([chunk for each in ids for chunk in each.chunks], pa.string())
        if have_ids and pc.count_distinct(given).as_py() == len(table):  # Without nulls.
            return _renumbered(table, given), warnings
        if only_names and not have_ids:
            return _renumbered(table, table["id"]), warnings
        numbers = pc.utf8_lpad(pa.array(np.arange(len(table))).cast(pa.string()), 8, "0")
        return _renumbered(table, pc.binary_join_element_wise(self._name_of(split), numbers, "-")), warnings


def _refuse_schemas(files_read: Sequence[row_file.RowFile], rules: TableRules) -> None:
    """Raises DataError for files without recordings, or with two columns of a name that is read.

    Files of which only some have a column of paths are refused, too.
    """
    audio = rules.audio_column_name
    for file in files_read:
        require_column(file.url, file.schema.names, audio, "data.audio_column_name")
        refuse_repeated(file.url, file.schema.names, rules.wanted)
        if not row_file.holds_recordings(audio, file.schema):
            raise DataError(
                f"data.audio_column_name: {file.url}: the column {audio!r} has {file.schema.field(audio).type}, not "
                "recordings: name a column of encoded files or of their paths"
            )
    names_only = [row_file.paths_of(audio, file.schema) == (audio,) for file in files_read]
    if len(set(names_only)) > 1:
        other = files_read[names_only.index(not names_only[0])]
        raise DataError(
            f"data.audio_column_name: {files_read[0].url} and {other.url}: the column {audio!r} has the "
            f"types {files_read[0].schema.field(audio).type} and {other.schema.field(audio).type}: save both with the "
            "same type, either recordings or paths"
        )


def _unread(builder: Any, split: str) -> str:
    """Returns why the files of a builder are not read, and the fix; "" if they are read."""
    files = [str(file) for files in (builder.config.data_files or {}).values() for file in files]
    if builder.name == "webdataset":
        shards = f"{files[0]} and {len(files) - 1} more" if len(files) > 1 else files[0]
        return f"it has shards of WebDataset ({shards}): name them as data.{split}: webdataset:…/{{000..127}}.tar"
    if builder.name not in ("audiofolder", "csv", "json"):
        return (
            f"its files are read by the builder {builder.name!r} of `datasets` alone: save it with save_to_disk, or "
            f"write a manifest of its recordings, and name it as data.{split}"
        )
    packed = next((file for file in files if file.endswith(_PACKED)), None)
    fix = f"unpack it, or put its recordings into a tar, with a manifest of them, and name that as data.{split}"
    return f"{packed} is packed: {fix}" if packed else ""


def _files_of(builder: Any, name: str, column: str) -> Mapping[str, Sequence[str]]:
    """Returns the files of each split; for a folder that `save_to_disk` wrote, the listed files in their order.

    Raises DataError for a folder with tables that would be ignored, see `passed_over`.
    """
    folder = Path(name)
    if saved := saved_files(folder.resolve()):
        return saved
    # Tables next to the recordings of an audio folder have other names.
    if builder.name != "audiofolder" and folder.is_dir():
        read = [str(file) for files in builder.config.data_files.values() for file in files]
        if told := passed_over(folder.expanduser().resolve().as_posix(), read, column):
            raise DataError(told)
    return {str(split): files for split, files in builder.config.data_files.items()}


def _parts_of(spec: str, listed: Mapping[str, Sequence[str]], row_format: RowFormat) -> list[row_file.RowRange]:
    """Returns the rows of files that a split such as `train[:50%]+validation` selects."""
    files = {each: row_file.in_parallel(row_format.describe, listed[each]) for each in dict.fromkeys(_named_in(spec))}
    lengths = {each: sum(file.rows for file in of_split) for each, of_split in files.items()}
    return [part for piece, first, end in _pieces(spec, lengths) for part in row_file.cut(files[piece], first, end)]


def _renumbered(table: pa.Table, ids: pa.ChunkedArray | pa.Array) -> pa.Table:
    """Returns a table of ROW_SCHEMA with other ids and new row numbers."""
    return with_all_offsets(with_columns(table, id=ids, row=pa.array(np.arange(len(table)))))


def _pieces(spec: str, lengths: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Returns what a split expression selects: split, first row and end for each piece; no piece is empty."""
    import datasets  # noqa: PLC0415

    absolute = datasets.ReadInstruction.from_spec(spec).to_absolute(lengths)
    pieces = [(each.splitname, each.from_, each.to) for each in absolute if each.from_ < each.to]
    if not pieces:
        raise ValueError("there are no rows")
    return pieces


def _named_in(spec: str) -> list[str]:
    return [re.split(r"[\[(]", each)[0].strip() for each in spec.split("+")]


def _first_of(name: str, count: int) -> str:
    """Limits each part of a split to its first clips: `train[10%:]+validation` → `train[:16]+validation[:16]`."""
    # `all`, which stands for every split, cannot be limited.
    return "+".join(part if part == "all" else f"{part}[:{count}]" for part in _named_in(name))


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
