"""Preparing the splits of a config, each once."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from trainers.config.locations import cache_url_of, storage_path_of
from trainers.config.reading import AUGMENT_FIELDS
from trainers.config.schema import TrainConfig
from trainers.data.preparation import ShardTask, prepare
from trainers.data.prepared_set import PreparedSet
from trainers.data.sources.opening import SPLITS, Source, open_mixed_sources, open_sources
from trainers.distributed.console import print_line
from trainers.pipeline.engine import Engine
from trainers.storage import open_storage


def prepare_all(config: TrainConfig, engine: Engine, splits: tuple[str, ...] = SPLITS) -> dict[str, PreparedSet]:
    """Prepares every split of the config, or finds it prepared.

    Raises:
        DataError: a manifest is wrong, or too many recordings cannot be decoded.
        StorageError: the storage cannot be written.
    """
    check_storage(config)
    engine.check(config, trains=False)
    return prepare_splits(config, open_config_sources(config, splits), engine)


def check_storage(config: TrainConfig) -> None:
    """Finds within seconds what would stop the run; before anything else that asks the storage and waits for it."""
    open_storage(storage_path_of(config), config.run.storage_options).check_writable()


def open_config_sources(config: TrainConfig, splits: tuple[str, ...] = SPLITS) -> list[Source]:
    """Opens the data sources of a config."""
    options = config.run.storage_options
    memory = open_storage(cache_url_of(config), options)
    return open_sources(config.data, storage_options=options, splits=splits, memory=memory)


def open_config_mixed(config: TrainConfig) -> list[Source]:
    """Opens the manifests of recordings that a config mixes into clips."""
    options = config.run.storage_options
    fields = {f"{part}.{name}": getattr(config.augment, name) for part, name in AUGMENT_FIELDS}
    locations = {field: location for field, location in fields.items() if location is not None}
    memory = open_storage(cache_url_of(config), options)
    return open_mixed_sources(config.data, locations, storage_options=options, memory=memory)


def prepare_splits(
    config: TrainConfig, sources: Sequence[Source], engine: Engine, show: Callable[[str], None] = lambda _: None
) -> dict[str, PreparedSet]:
    """Prepares opened sources; `show` takes how far it is."""
    return {source.split: _prepare(config, source, engine, show) for source in sources}


def _prepare(config: TrainConfig, source: Source, engine: Engine, show: Callable[[str], None]) -> PreparedSet:
    def counting(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        done, total = 0, sum(map(len, blocks))
        show(f"{source.split} 0 of {total} clips")
        for part in engine.runner(blocks, task):
            done += len(part)
            show(f"{source.split} {done} of {total} clips")
            yield part

    return prepare(
        source,
        config.data,
        cache_url=cache_url_of(config),
        storage_options=config.run.storage_options,
        runner=counting,
        log=print_line,
    )
