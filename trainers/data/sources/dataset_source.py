"""Data source `dataset:`: what `datasets.load_dataset` opens, from the Hub or a folder, and what `save_to_disk` wrote.

The driver reads transcripts, and each node the recordings of its rows: from Parquet and Arrow files by file and row,
of an audio folder, JSON and CSV by their paths. What `datasets` itself would decode is refused.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_part import DataPart, HubDatasetPart
from trainers.data.sources.data_source import SPLITS, DataSource, SourceSplit, rows_of
from trainers.data.sources.fingerprint import hash_of
from trainers.data.sources.recording_readers import FileReader
from trainers.data.sources.row_files import listed_rows, row_file
from trainers.data.sources.row_files.arrow_rows import ArrowRows, saved_files
from trainers.data.sources.row_files.listed_rows import ListedRows
from trainers.data.sources.row_files.parquet_rows import ParquetRows
from trainers.data.sources.row_files.row_file import RowFileReader, RowFormat
from trainers.errors import DataError
from trainers.storage import Storage
from trainers.storage.hub_errors import read_from_hub

# Archives of which `datasets` takes out recordings, to decode them.
_PACKED = (".zip", ".tar.gz", ".tgz")


class DatasetSource(DataSource):
    """The data set of a config."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(split for split in SPLITS if self._name_of(split) is not None)

    @property
    def listing_requires_job(self) -> str:
        name = self._part.name
        return (
            ""
            if Path(name).is_dir()
            else f"data.dataset.name: {name} is not a folder here; it is opened where the job runs"
        )

    def open(self, split: str, fingerprint_cache: Storage | None) -> SourceSplit:
        part, name = self._part, self._name_of(split)
        what = f"data.dataset: {part.name} ({part.config_name}), split {name}"
        try:
            return read_from_hub(lambda: self._load(split, str(name)), what)
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

    def _load(self, split: str, name: str) -> SourceSplit:
        # The client side imports this module's neighbors; `datasets` alone takes two seconds.
        import datasets  # noqa: PLC0415

        part = self._part
        config_name = _config_name(part)
        builder = datasets.load_dataset_builder(part.name, config_name, revision=part.revision)
        row_format = _row_format(builder)
        if row_format is not None:
            return self._split_of_files(split, name, builder, row_format)
        if problem := _unread(builder, split):
            raise ValueError(problem)
        return self._listed_split(split, name, builder)

    def _listed_split(self, split: str, name: str, builder: Any) -> SourceSplit:
        """Rows that only name their recordings."""
        spec = _spec_of(name, builder)
        fingerprint = self._fingerprint(name, builder._get_dataset_fingerprint(spec))
        rows = ListedRows(builder, self.data.audio_column_name, self.data.text_column_name, self._require_columns)
        listed = {each: rows.of_split(each) for each in _wanted(spec, map(str, builder.config.data_files))}
        lengths = {each: len(table) for each, table in listed.items()}
        pieces = [listed[piece].slice(first, end - first) for piece, first, end in _pieces(spec, lengths)]
        arrow = pa.concat_tables(pieces)
        table = self._rows(arrow, name, arrow[self.data.audio_column_name])
        reader = FileReader(self.storage_options)
        examples = table["audio"].slice(0, listed_rows.EXAMPLES).to_pylist()
        return SourceSplit(split, f"{self._part.name} {name}", table, reader, fingerprint, node_files=examples)

    def _split_of_files(self, split: str, name: str, builder: Any, row_format: RowFormat) -> SourceSplit:
        parts = self._parts_of(name, builder, row_format)
        schema, audio = parts[0][0].schema, self.data.audio_column_name
        self._require_columns(schema.names)
        if not row_file.holds_recordings(audio, schema):
            raise DataError(
                f"data.audio_column_name: {self._part.name}: the column {audio!r} holds {schema.field(audio).type}, no "
                "recordings: name one of encoded files or of their paths"
            )
        ids = ["id"] if "id" in schema.names else []
        columns = [self.data.text_column_name, *ids, *row_file.paths_of(audio, schema)]
        arrow = row_file.read_columns(row_format, parts, columns)
        table = self._rows(arrow, name, row_file.path_column(arrow, audio))
        for column in (located := row_file.locations(parts)).column_names:
            table = table.append_column(column, located[column])
        former = self._fingerprint(name, builder._get_dataset_fingerprint(_spec_of(name, builder)))
        # Of those of Parquet files, an earlier version prepared recordings of other rows.
        goes_back = isinstance(row_format, ParquetRows) and any(
            one.url == other.url and first < end for (one, _, end), (other, first, _) in pairwise(parts)
        )
        return SourceSplit(
            split,
            f"{self._part.name} {name}",
            table,
            RowFileReader(row_format, audio, FileReader(self.storage_options)),
            hash_of(former, "goes back") if goes_back else former,
            node_files=list(dict.fromkeys(file.url for file, _, _ in parts)),
            rows_at_once=max(file.group_rows for file, _, _ in parts),
            former=former,
        )

    def _parts_of(self, name: str, builder: Any, row_format: RowFormat) -> list[row_file.RowRange]:
        """The rows of files that a split such as `train[:50%]+validation` means."""
        urls, spec = _files_of(builder, self._part.name), _spec_of(name, builder)
        files = {each: row_file.describe_files(row_format, urls[each]) for each in _wanted(spec, urls)}
        lengths = {each: sum(file.rows for file in of_split) for each, of_split in files.items()}
        return [part for piece, first, end in _pieces(spec, lengths) for part in row_file.cut(files[piece], first, end)]

    def _rows(self, arrow: pa.Table, name: str, paths: pa.ChunkedArray | pa.Array) -> pa.Table:
        numbers = pc.utf8_lpad(pa.array(np.arange(len(arrow))).cast(pa.string()), 8, "0")
        has_ids = "id" in arrow.column_names and pc.count_distinct(arrow["id"]).as_py() == len(arrow)  # Without nulls.
        ids = arrow["id"].cast(pa.string()) if has_ids else pc.binary_join_element_wise(name, numbers, "-")
        return rows_of(ids, paths, arrow[self.data.text_column_name].cast(pa.string()).fill_null(""))

    def _fingerprint(self, name: str, content: str) -> str:
        columns = (self.data.audio_column_name, self.data.text_column_name)
        return hash_of(content, self._part.name, name, columns)

    def _require_columns(self, names: Sequence[str]) -> None:
        for field in ("audio_column_name", "text_column_name"):
            if (column := getattr(self.data, field)) not in names:
                raise DataError(f"data.{field}: {self._part.name} has no column {column!r}; it has {', '.join(names)}")


def _row_format(builder: Any) -> RowFormat | None:
    """The format of the files of which nodes read rows; None of others."""
    from datasets.packaged_modules.arrow.arrow import Arrow  # noqa: PLC0415
    from datasets.packaged_modules.parquet.parquet import Parquet  # noqa: PLC0415

    return ParquetRows() if isinstance(builder, Parquet) else ArrowRows() if isinstance(builder, Arrow) else None


def _unread(builder: Any, split: str) -> str:
    """Why files that hold more than the paths of recordings are not read, and what to do; "" of others."""
    from datasets.packaged_modules.audiofolder.audiofolder import AudioFolder  # noqa: PLC0415
    from datasets.packaged_modules.csv.csv import Csv  # noqa: PLC0415
    from datasets.packaged_modules.json.json import Json  # noqa: PLC0415
    from datasets.packaged_modules.webdataset.webdataset import WebDataset  # noqa: PLC0415

    files = [str(file) for files in (builder.config.data_files or {}).values() for file in files]
    if isinstance(builder, WebDataset):
        shards = f"{files[0]} and {len(files) - 1} more" if len(files) > 1 else files[0]
        return f"it holds shards of WebDataset ({shards}): name them as data.{split}: webdataset:…/{{000..127}}.tar"
    if not isinstance(builder, AudioFolder | Csv | Json):
        return (
            f"its files are read by the builder {builder.name!r} of `datasets` alone: save it with save_to_disk, or "
            f"write a manifest of its recordings, and name it as data.{split}"
        )
    packed = next((file for file in files if file.endswith(_PACKED)), None)
    fix = f"unpack it, or put its recordings into a tar, with a manifest of them, and name that as data.{split}"
    return f"{packed} is packed: {fix}" if packed else ""


def _files_of(builder: Any, name: str) -> Mapping[str, Sequence[str]]:
    """The files of each split; of a folder that `save_to_disk` wrote those that it names, in their order."""
    return saved_files(Path(name).resolve()) or {
        str(split): files for split, files in builder.config.data_files.items()
    }


def _spec_of(name: str, builder: Any) -> str:
    return "+".join(map(str, builder.config.data_files)) if name == "all" else name


def _wanted(spec: str, splits: Iterable[str]) -> list[str]:
    """The splits that are named in one such as `train[:50%]+validation`."""
    wanted, known = list(dict.fromkeys(_named_in(spec))), list(splits)
    unknown = [each for each in wanted if each not in known]
    if unknown:
        raise ValueError(f"there is no split {unknown[0]!r}; there are {', '.join(known)}")
    return wanted


def _pieces(spec: str, lengths: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """What such a split means: a split, the first of its rows, and the one behind the last; none is empty."""
    import datasets  # noqa: PLC0415

    absolute = datasets.ReadInstruction.from_spec(spec).to_absolute(lengths)
    pieces = [(each.splitname, each.from_, each.to) for each in absolute if each.from_ < each.to]
    if not pieces:
        raise ValueError("there are no rows")
    return pieces


def _named_in(spec: str) -> list[str]:
    return [re.split(r"[\[(]", each)[0].strip() for each in spec.split("+")]


def _first_of(name: str, count: int) -> str:
    """The first clips of each part of a split: `train[10%:]+validation` → `train[:16]+validation[:16]`."""
    # What stands for every split takes no limit.
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
