"""What is known to stop a run before anything slow is loaded, all of it at once. Loads no heavy library."""

from collections.abc import Iterator
from pathlib import Path

from trainers.config.config_scope import AUGMENT_FIELDS
from trainers.config.locations import storage_path_of
from trainers.config.parts.data_location import path_in
from trainers.config.parts.model_source import ModelSource, SourceKind
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import is_remote, is_url
from trainers.config.validation import Problems
from trainers.data.sources.archives.archive_path import archives_in
from trainers.data.sources.data_source import SPLITS
from trainers.data.sources.known_sources import source_of
from trainers.distributed.console import is_main_process, show
from trainers.errors import ConfigError
from trainers.models.sources.model_files import FIELDS
from trainers.storage import try_out


def early_problems(config: TrainConfig, split: str | None, *, trains: bool, has_files: bool, writes: bool) -> Problems:
    """What would stop a verb, as far as that is known now; shows a warning of what is odd.

    What is in buckets is looked for later, since that takes libraries that load slowly.

    Args:
        config: See above, its paths absolute.
        split: The one that is read. None: all.
        trains: Whether the verb is a training.
        has_files: Whether this machine has the files that the config names; of a cluster, its nodes have them.
        writes: Whether something is kept under run.storage_path.
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
        for field, path in _files(config) if trains else ():
            with problems:
                _refuse_missing(field, path)
        # Of several processes the first one writes.
        if writes and not is_url(storage_path_of(config)) and is_main_process():
            with problems:
                try_out(storage_path_of(config))
    return problems


def _files(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Fields and paths of what else is on a disk of this machine, or should be."""
    for part, name in (*AUGMENT_FIELDS, *(("decode", field) for field in config.decode.files)):
        value = getattr(getattr(config, part), name)
        if value is not None:
            yield f"{part}.{name}", path_in(value)
    for name in FIELDS if config.model.init != "scratch" else ():
        text = getattr(config.model, name, None)
        if text is not None and (source := ModelSource.parse(text)).kind is SourceKind.PATH:
            yield f"model.{name}", source.address


def _refuse_missing(field: str, path: str) -> None:
    there = is_remote(path) or Path(path).exists() or any(Path(archive).exists() for archive, _ in archives_in(path))
    if not there:
        raise ConfigError(f"{field}: {path}: no such file or folder; name one that is there (--set {field}=…)")
