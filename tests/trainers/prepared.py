"""Prepared sets that tests make on the spot."""

from pathlib import Path

from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import DEFAULT_STORAGE_OPTIONS, StorageOptions
from trainers.data.preparation import prepare, run_in_process
from trainers.data.prepared_set import PreparedSet
from trainers.data.sources.known_sources import open_sources


def prepared_train(
    manifest: Path, cache_url: str, storage_options: StorageOptions = DEFAULT_STORAGE_OPTIONS
) -> PreparedSet:
    """The training set of a manifest, prepared in this process."""
    data = DataPart(train=str(manifest), validation="/nowhere.csv")
    (source,) = open_sources(data, storage_options=storage_options, splits=("train",))
    return prepare(
        source,
        data,
        cache_url=cache_url,
        storage_options=storage_options,
        run="test",
        runner=run_in_process,
        log=lambda line: None,
    )
