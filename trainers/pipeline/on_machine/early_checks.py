"""Finds all problems of a run that can be found before heavy libraries are loaded."""

from collections.abc import Iterator

from trainers.config.locations import storage_path_of
from trainers.config.parts.data_location import path_in
from trainers.config.parts.model_source import ModelSource, SourceKind
from trainers.config.parts.part import AUGMENT_FIELDS
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import is_url
from trainers.config.validation import Problems
from trainers.data.sources.archives.archive_path import is_missing
from trainers.data.sources.data_source import SPLITS, naming
from trainers.data.sources.known_sources import source_of
from trainers.distributed.console import is_main_process, show
from trainers.errors import ConfigError
from trainers.models.sources.model_files import FIELDS
from trainers.storage import try_out


def early_problems(config: TrainConfig, split: str | None, *, trains: bool, has_files: bool, writes: bool) -> Problems:
    """Returns the problems that would stop a verb, as far as they are known now; shows a warning for suspicious values.

    Buckets are checked later, since their libraries load slowly. Only `split` of the data is checked, by default all
    splits. `has_files` is True if this machine has the config's files, whose paths are absolute, and False if only a
    cluster's nodes may have them. `writes` is True if the verb writes under run.storage_path.
    """
    problems = Problems()
    if trains:
        if (note := config.training.warmup_note(config.training.max_steps)) is not None:
            show(f"warning: {note}")
        with problems:
            config.model.refuse_early()
    if has_files:
        for each in (split,) if split is not None else SPLITS:
            with problems:
                source_of(config.data, config.run.storage_options).refuse_missing((each,))
        for name, location in config.evaluate.also.items() if trains else ():
            with problems, naming(f"evaluate.also.{name}"):
                source_of(config.data.of_other_set(location), config.run.storage_options).refuse_missing(("test",))
        for field, path in _files(config) if trains else ():
            if is_missing(path):
                missing = f"{field}: {path}: no such file or folder; name one that exists (--set {field}=…)"
                problems.found.append(ConfigError(missing))
        # With several processes, only the first one writes.
        if writes and not is_url(storage_path_of(config)) and is_main_process():
            with problems:
                try_out(storage_path_of(config))
    return problems


def _files(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yields field and path of each local file in the config, apart from the splits."""
    for part, name in (*AUGMENT_FIELDS, *(("decode", field) for field in config.decode.files)):
        value = getattr(getattr(config, part), name)
        if value is not None:
            yield f"{part}.{name}", path_in(value)
    for name in FIELDS if config.model.init != "scratch" else ():
        text = getattr(config.model, name, None)
        if text is not None and (source := ModelSource.parse(text)).kind is SourceKind.PATH:
            yield f"model.{name}", source.address
