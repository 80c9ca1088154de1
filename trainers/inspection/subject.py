"""The config under inspection, and its manifests, opened once for all checks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from trainers.config.locations import storage_path_of
from trainers.config.parts.training_part import TrainingPart
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import is_url
from trainers.data.sources.located_files import read_location
from trainers.data.sources.manifest import read_manifest
from trainers.data.sources.opening import SPLITS, open_sources
from trainers.data.text import normalize
from trainers.errors import ConfigError, DataError, StorageError
from trainers.inspection.findings import Finding, ok, problem, skipped
from trainers.inspection.recordings import Recordings, read_recordings
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder

DEFAULT_SCHEDULER = TrainingPart.model_fields["lr_scheduler_type"].default


@dataclass(frozen=True)
class Split:
    """One split, as its manifest has it.

    Attributes:
        name: train, validation or test.
        origin: Path or URL of its manifest.
        table: Rows, see `sources.Source.table`.
        texts: Transcripts as training would have them.
    """

    name: str
    origin: str
    table: pa.Table
    texts: list[str]

    @property
    def ids(self) -> Sequence[str]:
        """The utterances' ids."""
        ids: list[str] = self.table["id"].to_pylist()
        return ids


class Subject:
    """A config, inspected by one process on one machine."""

    def __init__(
        self, config: TrainConfig, address: str | None = None, *, elsewhere: bool = False, recordings_s: float = 60.0
    ):
        """Opens nothing yet.

        Args:
            config: The config, paths absolute.
            address: Of a Ray cluster, for the checks on its nodes. None: RAY_ADDRESS, or a Ray that is started here.
            elsewhere: The job runs on other machines: what cannot be reached from here is not an error.
            recordings_s: Headers of recordings are read for at most this long for each split. Seconds.
        """
        self.config, self.address = config, address
        self.elsewhere, self.recordings_s = elsewhere, recordings_s
        self._recordings: dict[str, Recordings] = {}

    @cached_property
    def context_s(self) -> float:
        """Seconds of the longest input; infinite where the model cannot be opened, which its own check reports."""
        # Loads transformers, which is to find no torch in a light process.
        from trainers.models.known_families import family_of  # noqa: PLC0415

        model = self.config.model
        try:
            return float(model.max_context_s or family_of(model).context_s(model))
        except (ConfigError, StorageError):
            return float("inf")

    @property
    def sets_arguments(self) -> bool:
        """Whether the config has training arguments that only transformers itself can judge."""
        part = self.config.training
        return bool(part.training_args) or part.lr_scheduler_type != DEFAULT_SCHEDULER

    @property
    def needs_torch(self) -> bool:
        """Whether a check needs torch itself, not only configs, tokenizers and the installed version."""
        adapts = self.config.adapt.method != "full"
        return self.sets_arguments or adapts or (self.config.scaling.use_gpu and not self.elsewhere)

    @property
    def has_begun(self) -> bool:
        """Whether the run has a checkpoint, so that it goes on with what it began with.

        Raises:
            StorageError: its storage cannot be read, or is a folder of other machines.
        """
        url = storage_path_of(self.config)
        if self.elsewhere and not is_url(url) and not Path(url).is_dir():
            raise StorageError(f"run.storage_path: {url} is a folder that this machine does not have")
        return Journal(RunFolder.of(self.config)).read().has_begun

    def unreachable(self, text: str) -> Finding:
        """The finding for something that is not there, or cannot be read."""
        return skipped(f"{text} (the nodes may reach it)") if self.elsewhere else problem(text)

    def recordings(self, split: Split) -> Recordings:
        """What is known of the split's recordings."""
        if split.name not in self._recordings:
            end = time.monotonic() + self.recordings_s
            self._recordings[split.name] = read_recordings(split.table, self.config.run.storage_options, deadline=end)
        return self._recordings[split.name]

    @property
    def splits(self) -> list[Split]:
        """The splits that could be opened."""
        return self._opened[0]

    @property
    def split_findings(self) -> list[Finding]:
        """What happened when the splits were opened."""
        return self._opened[1]

    def split(self, name: str) -> Split | None:
        """A split, if it could be opened."""
        return next((split for split in self.splits if split.name == name), None)

    @cached_property
    def _opened(self) -> tuple[list[Split], list[Finding]]:
        data = self.config.data
        if data.demo is not None:
            return [], [skipped("data.demo is synthesized where the job runs; there is no manifest to read")]
        if data.dataset is not None:
            return self._data_set(data.dataset.name)
        manifests = {"train": data.train, "validation": data.validation, "test": data.test}
        opened = [self._manifest(name, location) for name in SPLITS if (location := manifests[name]) is not None]
        splits = [each for each in opened if isinstance(each, Split)]
        findings = [each for each in opened if isinstance(each, Finding)]
        findings += [ok(f"{split.name}: {len(split.table)} rows in {split.origin}") for split in splits]
        return splits, findings

    def _manifest(self, name: str, location: str) -> Split | Finding:
        data = self.config.data
        fix = f"give the path of a manifest (--set data.{name}=my/{name}.csv)"
        try:
            content = read_location(location, self.config.run.storage_options)
        except FileNotFoundError:
            text = f"data.{name}: {location}: no such file; {fix}"
            # A bucket is the same from everywhere.
            return problem(text) if is_url(location) else self.unreachable(text)
        except (OSError, StorageError) as error:
            return self.unreachable(f"data.{name}: {location}: {error}; {fix}")
        try:
            table = read_manifest(
                location,
                content,
                audio_column_name=data.audio_column_name,
                text_column_name=data.text_column_name,
            )
        except DataError as error:
            return problem(f"data.{name}: {error}")
        return self._split(name, location, table)

    def _data_set(self, name: str) -> tuple[list[Split], list[Finding]]:
        if not Path(name).is_dir():
            return [], [skipped(f"data.dataset.name: {name} is not a folder here; it is opened where the job runs")]
        try:
            sources = open_sources(self.config.data, storage_options=self.config.run.storage_options)
        except DataError as error:
            return [], [problem(str(error))]
        splits = [self._split(source.split, source.origin, source.table) for source in sources]
        return splits, [ok(f"{split.name}: {len(split.table)} rows in {split.origin}") for split in splits]

    def _split(self, name: str, origin: str, table: pa.Table) -> Split:
        texts = [normalize(text or "", self.config.data) for text in table["text"].to_pylist()]
        return Split(name, origin, table, texts)
