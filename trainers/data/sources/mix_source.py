"""Data source `mix:`: several data sources, joined. Each split has the rows of all members that have the split."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.sources.data_source import SPLITS, DataSource, SourceMember, SourceSplit, naming, with_columns
from trainers.data.sources.fingerprint import hash_of
from trainers.data.sources.manifest_source import ManifestSource
from trainers.data.sources.recording_readers import RecordingReader, Row
from trainers.errors import AudioError
from trainers.storage import Storage

# Column with the number of each row's member.
_MEMBER = "member"


@dataclass(frozen=True)
class MixReader:
    """Reads the recordings of rows of several members, each with the member's reader."""

    readers: Sequence[RecordingReader]

    def read(self, rows: Sequence[Row]) -> Iterator[bytes | AudioError]:
        for member, of_member in groupby(rows, key=lambda row: int(row[_MEMBER])):
            yield from self.readers[member].read(list(of_member))


class MixSource(DataSource):
    """The mix of a config. Validation and test are the config's own manifests, or else those of all members."""

    def __init__(
        self,
        data: DataPart,
        storage_options: StorageOptions,
        source_of: Callable[[DataPart, StorageOptions], DataSource],
    ):
        """See `DataSource`; `source_of` returns the data source of each member."""
        super().__init__(data, storage_options)
        self._source_of = source_of

    @cached_property
    def _sources(self) -> Mapping[str, DataSource]:
        sources = {}
        for member in self.data.mix:
            with naming(f"data.mix: {member.name}"):
                sources[member.name] = self._source_of(self.data.of_member(member), self.storage_options)
        return sources

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(
            split
            for split in SPLITS
            if self._has_own(split) or any(split in source.splits for source in self._sources.values())
        )

    @property
    def listing_requires_job(self) -> str:
        return next(filter(None, (source.listing_requires_job for source in self._sources.values())), "")

    def open(self, split: str, fingerprint_cache: Storage | None) -> SourceSplit:
        if self._has_own(split):
            return ManifestSource(self.data, self.storage_options).open(split, fingerprint_cache)
        members = []
        for member in self.data.mix:
            source = self._sources[member.name]
            if split in source.splits:
                with naming(f"data.mix: {member.name}"):
                    opened = source.open(split, fingerprint_cache)
                # The name under which it is prepared.
                own = replace(opened, split=f"{split} ({member.name})")
                members.append(SourceMember(member.name, member.language, own))
        return joined(split, members)

    def truncated(self, counts: Mapping[str, int], folder: Path) -> DataPart:
        members = []
        for member in self.data.mix:
            own = folder / f"mix-{member.name}"
            own.mkdir()
            few = self._sources[member.name].truncated(counts, own)
            changed = {name: getattr(few, name) for name in (*SPLITS, "demo", "dataset", "source")}
            members.append(member.model_copy(update=changed))
        own_splits = ManifestSource(self.data, self.storage_options).truncated(counts, folder)
        return own_splits.model_copy(update={"mix": tuple(members)})

    def _has_own(self, split: str) -> bool:
        return getattr(self.data, split) is not None


def joined(split: str, members: Sequence[SourceMember]) -> SourceSplit:
    """Returns the split that joins the members of a mix."""
    sources = [member.source for member in members]
    tables = [_table_of(number, member) for number, member in enumerate(members)]
    table = pa.concat_tables(tables, promote_options="permissive")
    table = with_columns(table, row=pa.array(range(len(table)), pa.int64()))
    has_files = all(source.has_file_per_recording for source in sources)
    return SourceSplit(
        split,
        f"the mix of {', '.join(member.name for member in members)}",
        table,
        sources[0].reader if has_files else MixReader([source.reader for source in sources]),
        hash_of("mix", *((member.name, member.language, member.source.fingerprint) for member in members)),
        node_files=[file for source in sources for file in source.node_files],
        warnings=[f"data.mix: {each.name}: {text}" for each in members for text in each.source.warnings],
        recording_fingerprints={
            path: mark for source in sources for path, mark in source.recording_fingerprints.items()
        },
        members=members,
    )


def _table_of(number: int, member: SourceMember) -> pa.Table:
    """Returns a member's rows, with its number, its name in their ids and its language if they have none."""
    table = member.source.table
    named = {"id": pc.binary_join_element_wise(member.name, table["id"], "/")}
    if member.language is not None:
        named["language"] = pc.fill_null(table["language"], member.language)
    return with_columns(table, **named).append_column(_MEMBER, pa.repeat(pa.scalar(number, pa.int32()), len(table)))
