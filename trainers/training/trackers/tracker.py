"""What a tracker is, and what one is given: a run, and lines of its metrics."""

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

# Fields of a line of metrics that say where and when it is from.
_ORIGIN = ("step", "attempt", "time")


@dataclass(frozen=True)
class TrackerFiles:
    """Folders of trackers without a server: in the run folder, or of one in a bucket, below `staging` until uploaded.

    They are derived: each worker group writes them anew, complete.
    """

    folder: RunFolder
    staging: Path
    _replaced: set[str] = field(default_factory=set)

    @property
    def root(self) -> Path:
        """Where the folders are made."""
        return self.staging if is_url(self.folder.url) else Path(self.folder.url)

    def renew(self, name: str) -> Path:
        """An empty folder, in place of that of the groups before."""
        made = self.root / name
        rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        return made

    def upload(self) -> None:
        """Copies the folders to a bucket, the first time in place of those of the groups before.

        Raises:
            StorageError: the storage does not accept it.
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
    """A run as trackers show it.

    Attributes:
        id: Unique; the same in all attempts.
        name: What people call it.
        config: What it runs with, and its folder.
        files: Where trackers write that have no server.
    """

    id: str
    name: str
    config: Mapping[str, Any]
    files: TrackerFiles


@dataclass(frozen=True)
class TrackedLine:
    """A line of metrics.

    Attributes:
        position: Its place among those of the run.
        at_s: When it was logged, in seconds since 1970.
        values: Numbers under the names that transformers' own trackers use: train/loss, eval/wer, test/wer.
    """

    position: Position
    at_s: float
    values: dict[str, float]

    @classmethod
    def parsed(cls, text: str | bytes) -> "TrackedLine":
        """A line as metrics.jsonl has it; a number that is not finite, null there, is left out."""
        content = json.loads(text)
        numbers = {key: value for key, value in content.items() if key not in _ORIGIN and value is not None}
        return cls(position_of(content), seconds_of(content["time"]), rewrite_logs(numbers))

    @property
    def step(self) -> int:
        return self.position[0]


class Tracker(Protocol):
    """Where a run's metrics are shown next to those of others. Only one thread calls it; it may wait, and may raise."""

    def open(self, run: TrackedRun) -> Position | None:
        """Begins the run, or goes on with it; also after a method has raised.

        Returns:
            The position of the last line that it has; None: it has none.
        """

    def log(self, line: TrackedLine) -> None:
        """Adds a line."""

    def close(self, *, finished: bool) -> None:
        """Sends what is left. Where the run has not `finished`, another attempt may go on with it."""
