"""The config that is checked, and its manifests, which are opened once for all checks."""

import math
import time
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from trainers.config.locations import storage_path_of
from trainers.config.parts.model_source import ModelSource, SourceKind
from trainers.config.parts.training_part import TrainingPart
from trainers.config.schema import TrainConfig
from trainers.data.preparation import PrepareOptions
from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.known_sources import source_of, with_packed_segments
from trainers.data.sources.packing import packing_line
from trainers.data.text import normalize
from trainers.errors import ConfigError, DataError, StorageError
from trainers.findings import Finding, Moment, Need, found_in, ok, skipped, unread, warning
from trainers.inspection.recordings import Recordings, read_recordings
from trainers.models.sources.model_files import FIELDS
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
from trainers.storage.factory import refuse_other_machines

if TYPE_CHECKING:
    # OpenedModel's module imports transformers.
    from trainers.models.sources.opened_model import OpenedModel

DEFAULT_SCHEDULER = TrainingPart.model_fields["lr_scheduler_type"].default


@dataclass(frozen=True)
class Split:
    """A split from its source, and its transcripts, normalized as for training."""

    source: SourceSplit
    texts: list[str]

    @property
    def name(self) -> str:
        return self.source.split

    @property
    def table(self) -> pa.Table:
        return self.source.table

    @cached_property
    def ids(self) -> list[str]:
        ids: list[str] = self.table["id"].to_pylist()
        return ids


@dataclass(eq=False)
class Subject:
    """A config that one process checks on one machine.

    Attributes:
        config: The config, with absolute paths.
        address: Address of a Ray cluster, for the checks of its nodes.
        elsewhere: True if the job runs on other machines, so that unreachable files are not errors.
        light: True in a client's process, where torch is loaded only if needed, and packages may differ from the job's.
        recordings_s: Maximum time for reading headers of the recordings of each split. Seconds.
    """

    config: TrainConfig
    address: str | None = None
    _: KW_ONLY
    elsewhere: bool = False
    light: bool = False
    recordings_s: float = 60.0
    _recordings: dict[str, Recordings] = field(default_factory=dict, init=False)

    def context_of(self, split: Split) -> float:
        """Longest clip of a split that the model takes, in seconds; see `context_s`."""
        return self._own_context_s if split.name in self.config.evaluate.also else self.context_s

    @cached_property
    def context_s(self) -> float:
        """Longest input in training; infinite if the model cannot be opened, which another check reports. Seconds."""
        own_s = self._own_context_s
        return own_s if math.isinf(own_s) else float(self.config.model.max_context_s or own_s)

    @cached_property
    def _own_context_s(self) -> float:
        # Imported here, since it imports transformers, which must not find torch in a light process.
        from trainers.models.families import family_of  # noqa: PLC0415

        try:
            model = self.model.applied_to(self.config.model)
            return float(family_of(model).context_s)
        except (ConfigError, StorageError):
            return float("inf")

    @cached_property
    def model(self) -> "OpenedModel":
        """The files that describe the model, on this machine."""
        from trainers.models.sources.opened_model import open_sources, pin_sources  # noqa: PLC0415

        if self.elsewhere and (files := self._model_files):
            raise StorageError(f"model: {', '.join(files)}: a file is only opened where the job runs")
        return open_sources(self.config, pin_sources(self.config), weights=False)

    @property
    def _model_files(self) -> list[str]:
        """Sources of the model that are single files, as far as known without network requests."""
        texts = [text for name in FIELDS if (text := getattr(self.config.model, name, None)) is not None]
        sources = [ModelSource.parse(text) for text in texts]
        return [source.text for source in sources if source.kind is SourceKind.HTTPS or Path(source.address).is_file()]

    @property
    def sets_arguments(self) -> bool:
        """True if the config has training arguments that only transformers can check."""
        part = self.config.training
        return bool(part.training_args) or part.lr_scheduler_type != DEFAULT_SCHEDULER

    @property
    def needs_torch(self) -> bool:
        """True if a check needs torch itself, not only configs, tokenizers and the installed version."""
        adapts = self.config.adapt.method != "full"
        converts = bool(self._model_files) and not self.elsewhere
        loads = (self.config.scaling.use_gpu or self.config.model.init == "pretrained") and not self.elsewhere
        return self.sets_arguments or adapts or converts or loads

    @property
    def has_begun(self) -> bool:
        """True if the run has a checkpoint, and therefore keeps the experiment that it began with."""
        if self.elsewhere:
            refuse_other_machines(storage_path_of(self.config))
        return Journal(RunFolder.of(self.config)).read().has_begun

    def recordings(self, split: Split) -> Recordings:
        if split.name not in self._recordings:
            end = time.monotonic() + self.recordings_s
            self._recordings[split.name] = read_recordings(split.source, self.config.run.storage_options, deadline=end)
        return self._recordings[split.name]

    @property
    def splits(self) -> list[Split]:
        """The splits that could be opened."""
        return self._opened[0]

    @property
    def split_findings(self) -> list[Finding]:
        return self._opened[1]

    def split(self, name: str) -> Split | None:
        return next((split for split in self.splits if split.name == name), None)

    @cached_property
    def _opened(self) -> tuple[list[Split], list[Finding]]:
        # Recordings have their own checks, so their contents are not hashed here.
        data = self.config.data.model_copy(update={"fingerprint": "manifest"})
        rules = PrepareOptions.of(data)
        splits: list[Split] = []
        problems: list[Finding] = []
        try:
            source = source_of(data, self.config.run.storage_options)
        except ConfigError as error:
            return [], [unread(str(error))]
        if source.listing_requires_job:
            return [], [skipped(source.listing_requires_job)]
        sources = {name: (f"data.{name}", source, name) for name in source.splits}
        for name, location in self.config.evaluate.also.items():
            alone = source_of(data.of_other_set(location), self.config.run.storage_options)
            sources[name] = (f"evaluate.also.{name}", alone, "test")
        for name, (named, of_set, split) in sources.items():
            try:
                opened = replace(with_packed_segments(of_set.open(split, None), data), split=name)
            except (DataError, StorageError) as error:
                problems.append(found_in(error, f"{named}: "))
            else:
                texts = [normalize(text or "", rules) for text in opened.table["text"].to_pylist()]
                splits.append(Split(opened, texts))
        noted = [warning(text) for split in splits for text in split.source.warnings]
        rows = [ok(f"{split.name}: {len(split.table)} rows in {split.source.origin}") for split in splits]
        packing = [ok(line) for split in splits if (line := packing_line(split.source)) is not None]
        return splits, [*noted, *problems, *rows, *packing]


# Conditions of checks on a subject.
OPENING: Need[Subject] = Need(Moment.INSPECTION, lambda _: None)
SPLITS: Need[Subject] = Need(
    Moment.INSPECTION, lambda subject: None if subject.splits else "no manifest could be opened"
)
