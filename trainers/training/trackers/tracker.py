"""Interface of trackers: a run, and lines of its metrics."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol

from transformers.integrations.integration_utils import rewrite_logs

from trainers.config.storage_location import is_url
from trainers.run_folder.journal import Position, position_of
from trainers.run_folder.layout import TENSORBOARD, WANDB, RunFolder, seconds_of

# Fields of a line of metrics that are not numbers to show.
_ORIGIN = ("step", "attempt", "time")


@dataclass(frozen=True)
class TrackerFiles:
    """Folders of trackers without a server: in the run folder; for a run in a bucket, below `staging` until uploaded.

    Each worker group writes them again completely.
    """

    folder: RunFolder
    staging: Path
    _replaced: set[str] = field(default_factory=set)

    @property
    def root(self) -> Path:
        """Folder in which the trackers' folders are made."""
        return self.staging if is_url(self.folder.url) else Path(self.folder.url)

    def renew(self, name: str) -> Path:
        """Returns an empty folder, in place of that of earlier groups."""
        made = self.root / name
        rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        return made

    def upload(self) -> None:
        """Copies the folders to a bucket, the first time in place of those of earlier groups.

        Raises:
            StorageError: the storage does not accept a file.
        """
        for name in (TENSORBOARD, WANDB):
            local = self.staging / name
            if local.is_dir():
                if name not in self._replaced:
                    self.folder.storage.delete_tree(name)
                    self._replaced.add(name)
                self.folder.storage.upload_folder(local, name)


@dataclass(frozen=True)
class TrackedRun:
    """A run as shown by trackers.

    Attributes:
        id: Unique id; the same in all attempts.
        name: Name for people.
        config: Its config, and its folder.
        files: Folders for trackers without a server.
    """

    id: str
    name: str
    config: Mapping[str, Any]
    files: TrackerFiles


@dataclass(frozen=True)
class TrackedLine:
    """A line of metrics.

    Attributes:
        position: Its position among the lines of the run.
        at_s: Time of logging, in seconds since 1970.
        values: Numbers under the names that transformers' own trackers use: train/loss, eval/wer, test/wer.
    """

    position: Position
    at_s: float
    values: dict[str, float]

    @classmethod
    def parsed(cls, text: str | bytes) -> "TrackedLine":
        """Parses a line of metrics.jsonl; leaves out numbers that are not finite, which are null there."""
        content = json.loads(text)
        numbers = {key: value for key, value in content.items() if key not in _ORIGIN and value is not None}
        return cls(position_of(content), seconds_of(content["time"]), rewrite_logs(numbers))

    @property
    def step(self) -> int:
        return self.position[0]


class Tracker(Protocol):
    """Shows a run's metrics together with those of other runs. Used by one thread; methods may block and raise."""

    def open(self, run: TrackedRun) -> Position | None:
        """Begins or continues the run; called again after a method has raised.

        Returns:
            The position of the last line that the tracker has; None if it has none.
        """

    def log(self, line: TrackedLine) -> None:
        """Adds a line."""

    def close(self, *, finished: bool) -> None:
        """Sends remaining data. If the run has not `finished`, another attempt may continue it."""
