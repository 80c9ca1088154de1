"""Opens the data of a config, identifies it by hashes, and prepares each split once."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from trainers.config.locations import cache_url_of, storage_path_of
from trainers.config.parts.conditions import VALIDATION
from trainers.config.parts.data_part import DataPart
from trainers.config.parts.part import AUGMENT_FIELDS
from trainers.config.schema import TrainConfig
from trainers.config.wording import counted
from trainers.data.preparation import ShardTask, prepare, prepared_key
from trainers.data.prepared_set import PreparedSet
from trainers.data.sources.data_source import SLICE, SPLITS, SourceSplit
from trainers.data.sources.fingerprint import changed_since, store_fingerprints
from trainers.data.sources.known_sources import open_sources
from trainers.data.sources.manifest_source import open_mixed_sources
from trainers.data.sources.packing import SEGMENTS
from trainers.distributed import console
from trainers.distributed.console.events import Stage
from trainers.errors import ConfigError, DataError, RayscribeError
from trainers.models.family import Family
from trainers.models.labels import language_prefixes, languages_in
from trainers.pipeline.engine import Engine
from trainers.pipeline.experiment import content_name
from trainers.run_folder.journal import State
from trainers.run_folder.layout import REPORT
from trainers.storage import Storage, open_storage


def prepare_all(config: TrainConfig, engine: Engine, splits: tuple[str, ...] = SPLITS) -> dict[str, PreparedSet]:
    """Prepares every split of the config that is not prepared yet."""
    check_storage(config)
    engine.check(config, trains=False)
    return prepare_splits(config, [*open_config_sources(config, splits), *open_also(config)], engine)


def check_storage(config: TrainConfig) -> None:
    """Checks within seconds that the storage is writable; called before requests that would wait longer for it."""
    open_storage(storage_path_of(config), config.run.storage_options).check_writable()


def _cache_of(config: TrainConfig) -> Storage:
    return open_storage(cache_url_of(config), config.run.storage_options)


def open_config_sources(config: TrainConfig, splits: tuple[str, ...] = SPLITS) -> list[SourceSplit]:
    """Opens the data sources of a config."""
    options = config.run.storage_options
    return open_sources(config.data, storage_options=options, splits=splits, fingerprint_cache=_cache_of(config))


def open_also(config: TrainConfig) -> list[SourceSplit]:
    """Opens the sets of evaluate.also; the `split` of each is its name."""
    opened = []
    for name, location in config.evaluate.also.items():
        alone = config.data.of_other_set(location)
        try:
            (source,) = open_sources(
                alone, storage_options=config.run.storage_options, fingerprint_cache=_cache_of(config)
            )
        except RayscribeError as error:
            # The field of the config that has this set alone.
            raise type(error)(str(error).replace("data.test", f"evaluate.also.{name}")) from None
        opened.append(replace(source, split=name))
    return opened


def open_config_mixed(config: TrainConfig) -> list[SourceSplit]:
    """Opens the manifests of recordings that a config mixes into clips."""
    fields = {f"{part}.{name}": getattr(config.augment, name) for part, name in AUGMENT_FIELDS}
    locations = {field: location for field, location in fields.items() if location is not None}
    options = config.run.storage_options
    return open_mixed_sources(config.data, locations, storage_options=options, fingerprint_cache=_cache_of(config))


def check_languages(config: TrainConfig, family: Family[Any], sources: Sequence[SourceSplit], processor: Any) -> None:
    """Raises ConfigError if a clip has a language that the model does not know."""
    for source in sources:
        try:
            language_prefixes(family, processor, languages_in(source.table), config.model.language)
        except ConfigError as error:
            raise ConfigError(f"data.{source.split}: {error}") from None


@dataclass(frozen=True)
class OpenedData:
    """The data of a config, opened but not prepared.

    Attributes:
        mixed: The recordings that are mixed into clips.
        contents: Hash of each other known file, see `describe`.
    """

    sources: Sequence[SourceSplit]
    mixed: Sequence[SourceSplit]
    contents: Mapping[str, str]

    @classmethod
    def of(cls, config: TrainConfig, *, trains: bool = True) -> Self:
        """Opens the data of a config; without training, recordings to mix may be missing."""
        mixed: Sequence[SourceSplit] = ()
        try:
            mixed = open_config_mixed(config)
        except DataError:
            if trains:
                raise
        contents = {}
        for name in config.model.files:
            # A run that has read a file before continues without it; for other runs, the family reports it missing.
            with suppress(OSError):
                if (location := getattr(config.model, name)) is not None:
                    contents[f"model.{name}"] = hashlib.sha256(Path(location).read_bytes()).hexdigest()
        return cls([*open_config_sources(config), *(open_also(config) if trains else ())], mixed, contents)

    def keys(self, data: DataPart) -> dict[str, str]:
        """Returns the hash of each content, see `describe`."""
        prepared = {source.split: prepared_key(source, data) for source in self.sources}
        return {**self.contents, **prepared, **{source.split: source.fingerprint for source in self.mixed}}

    def changed_recordings(self, config: TrainConfig, state: State) -> str:
        """Returns lines for a message with the recordings that changed since the run began; "" if none is known."""
        known = state.experiment["experiment"] if state.experiment is not None else {}
        names = [(source, f"data.{source.split}") for source in self.sources]
        # A set of evaluate.also is part of the experiment only if it decides which checkpoint may be the best.
        names += [(source, content_name(f"evaluate.also.{source.split}")) for source in self.sources]
        names += [(source, content_name(source.split)) for source in self.mixed]
        cache, lines = _cache_of(config), []
        for source, name in names:
            key = known.get(name)
            if key is not None and (changed := changed_since(cache, key, source.recording_fingerprints)):
                shown = ", ".join(changed[:5]) + (", …" if len(changed) > 5 else "")
                number = counted(len(changed), "recording", "has", "have")
                lines.append(f"\n{source.split}: {number} changed since: {shown}")
        return "".join(lines)

    def new_speakers(self) -> frozenset[str]:
        """Returns the ids of validation clips whose speakers the training set lacks.

        Empty if a training clip has no speaker, since it may be any.
        """
        speakers = {source.split: source.table["speaker"].to_pylist() for source in self.sources}
        # A clip of segments of several speakers has none.
        heard = {
            speaker
            for source in self.sources
            if source.split == "train"
            for speaker in (source.unpacked if source.unpacked is not None else source.table)["speaker"].to_pylist()
        }
        if None in heard:
            return frozenset()
        return frozenset(
            id
            for source in self.sources
            if source.split == VALIDATION
            for id, speaker in zip(source.table["id"].to_pylist(), speakers[VALIDATION], strict=True)
            if speaker is not None and speaker not in heard
        )

    @property
    def training_rows_without_times(self) -> int:
        """Number of training rows that are not packed segments, so that only a model can give them timestamps."""
        (table,) = (source.table for source in self.sources if source.split == "train")
        return table[SEGMENTS].null_count if SEGMENTS in table.column_names else len(table)

    def slices(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yields the values of scored clips in `data.slice_columns`; warns about columns without values in a split."""
        for source in self.sources:
            if source.split == "train":
                continue
            table, found = source.table, {}
            for name in columns:
                column = f"{SLICE}{name}"
                found[name] = table[column].to_pylist() if column in table.column_names else []
                if not any(found[name]):
                    console.print_line(
                        f"warning: data.slice_columns: {source.split}: {source.origin} has no column {name!r} with "
                        "values: the score is not split by it"
                    )
            for number, id in enumerate(table["id"].to_pylist()):
                values = {name: of_rows[number] for name, of_rows in found.items() if of_rows and of_rows[number]}
                yield {"split": source.split, "id": id, "values": values}

    def prepare(self, config: TrainConfig, engine: Engine, show: Callable[[str], None]) -> dict[str, PreparedSet]:
        """Prepares the splits, and stores fingerprints that later show which recordings have changed."""
        sets, cache = prepare_splits(config, self.sources, engine, show), _cache_of(config)
        for source in (*self.sources, *self.mixed):
            key = sets[source.split].key if source.split in sets else source.fingerprint
            store_fingerprints(cache, key, source.recording_fingerprints)
        return sets


def prepare_splits(
    config: TrainConfig, sources: Sequence[SourceSplit], engine: Engine, show: Callable[[str], None] = lambda _: None
) -> dict[str, PreparedSet]:
    """Prepares opened sources; calls `show` with lines about the progress."""
    return {source.split: _prepare(config, source, engine, show) for source in sources}


def _prepare(config: TrainConfig, source: SourceSplit, engine: Engine, show: Callable[[str], None]) -> PreparedSet:
    is_new = False

    def counting(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        nonlocal is_new
        is_new = True
        done, total = 0, sum(map(len, blocks))
        show(f"{source.split} 0 of {total} clips")
        console.show(Stage(f"prepare {source.split}", f"decoding {counted(total, 'clip')}"))
        for part in engine.run_shard_tasks(blocks, task):
            done += len(part)
            show(f"{source.split} {done} of {total} clips")
            yield part

    prepared = prepare(
        source,
        config.data,
        cache_url=cache_url_of(config),
        storage_options=config.run.storage_options,
        run=f"{storage_path_of(config)}/{config.run.name}",
        runner=counting,
        log=console.show,
    )
    if is_new:
        for part in prepared.parts:
            with writing_page("a prepared set", part.url):
                if not part.storage.exists(REPORT):
                    # Imported here, since plotting is slow to load and needed once per set.
                    from trainers.scoring.report.data_section import prepared_html  # noqa: PLC0415

                    part.storage.write_bytes(REPORT, prepared_html(part).encode())
    return prepared


@contextmanager
def writing_page(what: str, url: str) -> Iterator[None]:
    """Turns errors of the block, which writes a page, into a warning."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        console.print_line(f"warning: the page of {what} was not written ({reason}): try rayscribe report {url}")
