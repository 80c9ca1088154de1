"""Feeds metrics to trackers, which show a run together with other runs, without blocking training.

A tracker gets the lines of metrics that the run folder has accepted, so that it shows all attempts of a run as one.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from shutil import rmtree
from threading import Thread
from types import TracebackType
from typing import Any, Protocol, Self

from transformers.integrations.integration_utils import rewrite_logs

from trainers.config.storage_location import is_url
from trainers.errors import FencedError, StorageError
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import KINDS, accepted_metrics, deduplicate, position_of
from trainers.run_folder.layout import TENSORBOARD, WANDB, RunFolder, seconds_of

# Fields of a line of metrics that are not numbers to show.
_ORIGIN = ("step", "attempt", "time")
# Timeout for all trackers together at the end of a worker.
LAST_WAIT_S = 10.0


@dataclass(frozen=True)
class TrackerFiles:
    """Folders of trackers without a server, in the run folder; for a run in a bucket, below `staging` until uploaded.

    Each worker group writes the folders again completely.
    """

    folder: RunFolder
    staging: Path
    _replaced: set[str] = field(default_factory=set)

    def renew(self, name: str) -> Path:
        """Returns an empty folder, which replaces the folder of earlier groups."""
        made = (self.staging if is_url(self.folder.url) else Path(self.folder.url)) / name
        rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        return made

    def upload(self) -> None:
        """Copies the folders to a bucket; the first time, replaces the folders of earlier groups."""
        for name in (TENSORBOARD, WANDB):
            local = self.staging / name
            if local.is_dir():
                if name not in self._replaced:
                    self.folder.storage.delete_tree(name)
                    self._replaced.add(name)
                self.folder.storage.upload_folder(local, name)


@dataclass(frozen=True)
class TrackedRun:
    """A run as shown by trackers, with an id that is the same in all attempts."""

    id: str
    name: str
    config: Mapping[str, Any]
    files: TrackerFiles


@dataclass(frozen=True)
class TrackedLine:
    """A line of metrics.

    Attributes:
        number: Position among the run's lines; grows with the step and, in a step, with the kind (`journal.KINDS`).
        at_s: Time of logging, in seconds since 1970.
        values: Numbers under the names that transformers' own trackers use, such as train/loss, eval/wer, test/wer.
    """

    number: int
    step: int
    at_s: float
    values: dict[str, float]

    @classmethod
    def parsed(cls, text: str | bytes) -> "TrackedLine":
        """Parses a line of metrics.jsonl; leaves out numbers that are null there, since they were not finite."""
        content = json.loads(text)
        numbers = {key: value for key, value in content.items() if key not in _ORIGIN and value is not None}
        step, kind = position_of(content)
        return cls(step * KINDS + kind, step, seconds_of(content["time"]), rewrite_logs(numbers))


class Tracker(Protocol):
    """Shows a run's metrics together with those of other runs. Used by one thread; methods may block and raise."""

    def open(self, run: TrackedRun) -> int:
        """Begins or continues the run; called again after a method has raised.

        Returns the number of the last line that the tracker has; -1 if it has none.
        """

    def log(self, line: TrackedLine) -> None:
        """Adds a line."""

    def close(self, *, finished: bool) -> None:
        """Sends remaining data. If the run has not `finished`, another attempt may continue it."""


class TrackerFeed:
    """Sends lines to one tracker in a thread, which starts with the first line; a failure is reported once.

    The tracker returns the number of the last line that it has, and `history` has all lines so far. So nothing is sent
    twice, and lines that a tracker missed, since it was unavailable or added later, are sent once it is available.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        run: TrackedRun,
        history: Callable[[], Iterable[str | bytes]],
        log: Callable[[str], None],
    ):
        self._name, self._tracker, self._run, self._history, self._log = name, tracker, run, history, log
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        # A daemon, so that the process can end while a tracker does not respond.
        self._thread = Thread(target=self._send_all, name=f"tracker {name}", daemon=True)
        self._ends = self._finished = self._told = False

    def send(self, line: str) -> None:
        if self._thread.ident is None:
            self._thread.start()
        self._lines.put(line)

    def end(self, *, finished: bool) -> None:
        """Makes the thread send the remaining lines, and end."""
        self._ends, self._finished = True, finished
        self._lines.put(None)

    def wait(self, seconds: float) -> None:
        """Waits until the thread has ended, for at most this many seconds."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._tell("it does not respond")

    def _send_all(self) -> None:
        while True:
            line = self._lines.get()
            try:
                self._go_on(line)
            except FencedError:
                return
            except Exception as error:
                self._tell(f"{type(error).__name__}: {error}")
                # Retries with each new line, and a last time at the end.
                if not (self._ends and self._lines.empty()):
                    continue
            return

    def _go_on(self, line: str | None) -> None:
        """Opens the tracker, and sends the lines that it lacks, then new lines as they arrive."""
        last = self._tracker.open(self._run)
        coming = chain([line], iter(self._lines.get, None)) if line is not None else ()
        for each in map(TrackedLine.parsed, chain(self._history(), coming)):
            if each.number > last:
                self._tracker.log(each)
                last = each.number
        self._tracker.close(finished=self._finished)

    def _tell(self, why: str) -> None:
        if not self._told:
            self._log(
                f"warning: training.report_to: {self._name} does not accept metrics now; training continues, and the "
                f"missing lines are sent when it does, by this attempt or the next: {why}"
            )
        self._told = True


class Trackers:
    """The trackers of a run, in its main process; other ranks have none."""

    def __init__(self, trackers: dict[str, Tracker], run: TrackedRun, writer: GroupWriter, log: Callable[[str], None]):
        def history() -> list[bytes]:
            return deduplicate(accepted_metrics(writer.folder, writer.check())).splitlines()

        self._feeds = [TrackerFeed(name, tracker, run, history, log) for name, tracker in trackers.items()]
        self._files, self._log = run.files, log

    def send(self, line: str) -> None:
        """Sends a line of metrics that is in the run folder."""
        for feed in self._feeds:
            feed.send(line)

    def upload(self) -> None:
        """Copies the trackers' files to the run folder if that is in a bucket."""
        self._files.upload()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Ends the trackers; waits for at most LAST_WAIT_S."""
        for feed in self._feeds:
            feed.end(finished=error is None)
        until = time.monotonic() + LAST_WAIT_S
        for feed in self._feeds:
            feed.wait(max(0.0, until - time.monotonic()))
        if self._feeds and not isinstance(error, FencedError):
            try:
                self._files.upload()
            except StorageError as problem:
                self._log(f"warning: files of training.report_to were not copied to the run folder: {problem}")
