"""Feeds trackers with the metrics that the run folder has accepted, without blocking training."""

import time
from collections.abc import Callable, Iterable
from itertools import chain
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

from trainers.errors import FencedError, StorageError
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import accepted_metrics, deduplicate
from trainers.training.trackers.tracker import TrackedLine, TrackedRun, Tracker

# How long the end of a worker waits for all trackers together.
LAST_WAIT_S = 10.0


class TrackerFeed:
    """Sends lines to one tracker in a thread; a failure is reported once.

    A tracker returns the last line that it has, and `history` has all lines so far. So nothing is sent twice, and lines
    that it missed, because it was unavailable or added later, are sent once it is available.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        run: TrackedRun,
        history: Callable[[], Iterable[str | bytes]],
        log: Callable[[str], None],
    ):
        """Starts with the first line."""
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
        """Waits until the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._tell("it does not answer")

    def _send_all(self) -> None:
        while True:
            line = self._lines.get()
            try:
                self._go_on(line)
            except FencedError:
                return
            except Exception as error:
                self._tell(f"{type(error).__name__}: {error}")
                # Retried with each line, and a last time at the end.
                if not (self._ends and self._lines.empty()):
                    continue
            return

    def _go_on(self, line: str | None) -> None:
        """Opens the tracker, and sends the lines that it lacks, then new lines as they arrive."""
        last = self._tracker.open(self._run)
        coming = chain([line], iter(self._lines.get, None)) if line is not None else ()
        for each in map(TrackedLine.parsed, chain(self._history(), coming)):
            if last is None or each.position > last:
                self._tracker.log(each)
                last = each.position
        self._tracker.close(finished=self._finished)

    def _tell(self, why: str) -> None:
        if not self._told:
            self._log(
                f"warning: training.report_to: {self._name} does not take metrics now; training continues, and what it "
                f"lacks is sent when it does, by this attempt or the next: {why}"
            )
        self._told = True


class Trackers:
    """The trackers of a run, in its main process; other ranks have none."""

    def __init__(self, trackers: dict[str, Tracker], run: TrackedRun, writer: GroupWriter, log: Callable[[str], None]):
        """Opens nothing before the first line."""

        def history() -> list[bytes]:
            return deduplicate(accepted_metrics(writer.folder, writer.check())).splitlines()

        self._feeds = [TrackerFeed(name, tracker, run, history, log) for name, tracker in trackers.items()]
        self._files, self._log = run.files, log

    def send(self, line: str) -> None:
        """Sends a line of metrics that is in the run folder."""
        for feed in self._feeds:
            feed.send(line)

    def upload(self) -> None:
        """Copies the trackers' files to the run folder, if it is in a bucket."""
        self._files.upload()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Ends the trackers, if they respond soon."""
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
