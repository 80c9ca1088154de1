"""Lists the data sources, and opens the data source of a config."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.sources.data_source import SPLITS, DataSource, SourceSplit, print_warnings
from trainers.data.sources.dataset_source import DatasetSource
from trainers.data.sources.demo_corpus import DemoSource
from trainers.data.sources.manifest_source import ManifestSource
from trainers.data.sources.mix_source import MixSource, joined
from trainers.data.sources.packing import SEGMENTS, packed, packing_line
from trainers.distributed.console import print_line
from trainers.errors import ConfigError
from trainers.plugins import with_plugins
from trainers.storage import Storage

# Entry points of other distributions: `name = module:class`, which a config selects with data.source.name.
GROUP = "rayscribe.sources"

SOURCES: Mapping[str, Callable[[DataPart, StorageOptions], DataSource]] = {
    "manifests": ManifestSource,
    "demo": DemoSource,
    "dataset": DatasetSource,
    "mix": lambda data, storage_options: MixSource(data, storage_options, source_of),
}


def source_of(data: DataPart, storage_options: StorageOptions) -> DataSource:
    """Returns the data source of a config; reads nothing yet. Raises ConfigError if it is unknown."""
    table = with_plugins(GROUP, SOURCES)
    if data.source_name not in table:
        raise ConfigError(
            f"data.source.name: {data.source_name!r} is not a data source here; install it, or take one of "
            f"{', '.join(table)}"
        )
    return table[data.source_name](data, storage_options)


def with_packed_segments(source: SourceSplit, data: DataPart) -> SourceSplit:
    """Returns a training split, or each member of a mix, with its segments packed if the config asks for it."""
    longest_s = data.pack_segments_s
    if longest_s is None or source.split != "train":
        return source
    if source.members:
        members = [replace(each, source=packed(each.source, data, longest_s)) for each in source.members]
        made = replace(joined(source.split, members), unpacked=source.table)
    else:
        made = packed(source, data, longest_s)
    if made.table[SEGMENTS].null_count < len(made.table):
        return made
    nothing = (
        f"data.pack_segments_s: no row of {source.origin} is a segment, with an offset and a duration: leave it out"
    )
    return replace(made, warnings=[*made.warnings, nothing])


def open_sources(
    data: DataPart,
    *,
    storage_options: StorageOptions,
    splits: tuple[str, ...] = SPLITS,
    fingerprint_cache: Storage | None = None,
) -> list[SourceSplit]:
    """Opens the configured data source; returns the requested splits that it has, and prints their warnings.

    `fingerprint_cache` is the cache of prepared sets. Raises as `source_of` and `DataSource.open`.
    """
    source = source_of(data, storage_options)
    found = [source.open(split, fingerprint_cache) for split in splits if split in source.splits]
    opened = [with_packed_segments(each, data) for each in found]
    print_warnings(opened)
    for line in filter(None, map(packing_line, opened)):
        print_line(line)
    return opened
