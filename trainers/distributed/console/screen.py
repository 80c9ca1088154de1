"""Shows events on a terminal, in a log, or as JSON lines for a program.

A process has at most one screen. Without an open screen, as in a program that calls `fit`, events are printed as lines
to standard output.
"""

import contextlib
import json
import math
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TextIO

from trainers.distributed.console.events import Event, Finished, Stage, View, content_of
from trainers.distributed.console.plain_lines import line_of, spent_line, still_line

# Seconds between two JSON lines that say that a stage is still running.
STILL_S = 10.0


class Output(Protocol):
    """Interface of outputs for events.

    Attributes:
        tick_s: Seconds between two calls of `tick`.
    """

    tick_s: float

    def show(self, event: Event, before: View, now_s: float) -> None:
        """Shows an event; `before` is the view without it."""

    def show_error(self, line: str, view: View, now_s: float) -> None:
        """Shows a message on standard error."""
        print(line, file=sys.stderr, flush=True)

    def tick(self, view: View, now_s: float) -> None:
        """Shows that the command is still running."""

    def close(self) -> None:
        """Restores standard output."""


class Screen:
    """Passes events from any thread to an output, and calls the output's `tick` regularly.

    If nobody reads the output any more, as after `| head`, the command continues without it.
    """

    def __init__(self, output: Output, file: TextIO, clock: Callable[[], float] = time.monotonic):
        """Shows events with `output`, which prints to `file`."""
        self._output, self._file, self._clock = output, file, clock
        self._view = View(began_s=clock())
        # Reentrant, since a signal may interrupt the thread that holds the lock, and its handler then shows an error.
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="screen", daemon=True)
        self._thread.start()

    def show(self, event: Event) -> None:
        with self._lock, self._dropping_unread():
            now_s = self._clock()
            before, self._view = self._view, self._view.after(event, now_s)
            if not isinstance(event, Stage) or before is not self._view:
                self._output.show(event, before, now_s)

    def show_error(self, line: str) -> None:
        with self._lock, self._dropping_unread():
            self._output.show_error(line, self._view, self._clock())

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        with self._dropping_unread():
            self._output.close()

    def _tick(self) -> None:
        while not self._closed.wait(self._output.tick_s):
            # `show` raises other errors of the output, in the main thread.
            with self._lock, contextlib.suppress(OSError, ValueError), self._dropping_unread():
                self._output.tick(self._view, self._clock())

    @contextlib.contextmanager
    def _dropping_unread(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            unread = [file for file in (self._file, sys.stderr) if _is_unread(file)]
            if not unread:
                raise
            for file in unread:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, file.fileno())
                os.close(nowhere)
            if self._file in unread:
                print(UNREAD, file=sys.stderr, flush=True)


def _is_unread(file: TextIO) -> bool:
    """Returns True for a pipe without a reader or a closed terminal."""
    found = select.poll()
    try:
        found.register(file, select.POLLOUT)
    except (OSError, ValueError, TypeError, AttributeError):  # not a file of the operating system
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in found.poll(0))


class LogOutput(Output):
    """Output for logs: prints each line immediately, and a "still …" line now and then during long stages."""

    tick_s = 1.0

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._last_s: float | None = None
        # Number of "still …" lines since the last other line, or since the stage began.
        self._stills = 0

    def show(self, event: Event, before: View, now_s: float) -> None:
        line = line_of(event, now_s - before.began_s)
        if isinstance(event, Finished):
            line = f"{spent_line(before, now_s)}\n{line}"
        if line is not None or isinstance(event, Stage):
            self._stills, self._last_s = 0, now_s
        if line is not None:
            print(line, file=self._file, flush=True)

    def tick(self, view: View, now_s: float) -> None:
        quiet_s = now_s - (view.began_s if self._last_s is None else self._last_s)
        line = still_line(view, now_s, quiet_s=quiet_s, stills=self._stills)
        if line is not None:
            self._stills, self._last_s = self._stills + 1, now_s
            print(line, file=self._file, flush=True)

    def close(self) -> None:
        """Does nothing, since standard output was not changed."""


class JsonLines(Output):
    """Output for programs: prints each event immediately, and redirects other standard output to standard error."""

    tick_s = STILL_S

    def __init__(self, file: TextIO):
        self._file = file
        self._redirect = contextlib.redirect_stdout(sys.stderr)
        self._redirect.__enter__()

    def show(self, event: Event, before: View, now_s: float) -> None:
        self._print(content_of(event), now_s - before.began_s)

    def show_error(self, line: str, view: View, now_s: float) -> None:
        """Prints a JSON line for programs and, on standard error, the message for people."""
        self._print({"event": "error", "text": line.removeprefix("error: ")}, now_s - view.began_s)
        super().show_error(line, view, now_s)

    def tick(self, view: View, now_s: float) -> None:
        if view.stage is not None:
            content = {"event": "still", "name": view.stage.name, "took_s": round(view.stage_took_s(now_s), 3)}
            self._print(content, now_s - view.began_s)

    def close(self) -> None:
        self._redirect.__exit__(None, None, None)

    def _print(self, content: dict[str, Any], since_start_s: float) -> None:
        event, *fields = content.items()
        timed = dict([event, ("after_s", round(since_start_s, 3)), *fields])
        print(json.dumps(_finite(timed), ensure_ascii=False, allow_nan=False), file=self._file, flush=True)


def _finite(value: Any) -> Any:
    """Returns content of JSON in which numbers that are not finite are null."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


UNREAD = "nobody reads the output any more: the command continues without it"
START, READING = "start", "reading the recipe"
# Arguments of commands without a screen: help, and checks, whose findings are read by another process.
PRINTS_ALONE = {"-h", "--help", "check", "--verb=check"}
_screen: Screen | None = None
_listeners: list[Callable[[str], None]] = []


@contextlib.contextmanager
def opened_screen(*, as_json: bool = False, to_stderr: bool = False) -> Iterator[None]:
    """Opens this process's screen for a command; does nothing if one is open, or on torchrun's ranks other than 0."""
    global _screen  # noqa: PLW0603 -- the output of a process is global, too
    if _screen is not None or not is_main_process():
        yield
        return
    file = sys.stderr if to_stderr else sys.stdout
    _screen = Screen(_output(file, as_json=as_json), file)
    try:
        yield
    finally:
        opened, _screen = _screen, None
        opened.close()


@contextlib.contextmanager
def opened_for(words: Sequence[str], *, to_stderr: bool = False) -> Iterator[None]:
    """Opens the screen for a command line, and prints a line before slow imports; does nothing for `PRINTS_ALONE`."""
    if not PRINTS_ALONE.isdisjoint(words):
        yield
        return
    with opened_screen(as_json="--json" in words and not to_stderr, to_stderr=to_stderr):
        show(Stage(START, READING, is_told=bool(words)))
        yield


def _output(file: TextIO, *, as_json: bool) -> Output:
    if as_json:
        return JsonLines(file)
    if file.isatty() and os.environ.get("TERM") != "dumb" and os.environ.get("WORLD_SIZE", "1") == "1":
        # rich takes longer to import than everything else that the first line needs.
        from trainers.distributed.console.live_view import Terminal  # noqa: PLC0415

        return Terminal(file)
    return LogOutput(file)


def is_main_process() -> bool:
    """Returns True in torchrun's rank 0 or a process without torchrun; works before the process group exists."""
    return os.environ.get("RANK", "0") == "0"


def show(event: Event) -> None:
    """Shows an event immediately, even if piped; under torchrun, only on rank 0."""
    if not is_main_process():
        return
    if _listeners and (line := line_of(event)) is not None:
        for listener in _listeners:
            listener(line)
    if _screen is not None:
        _screen.show(event)
    elif (line := line_of(event)) is not None:
        print(line, flush=True)


@contextlib.contextmanager
def listened(listener: Callable[[str], None]) -> Iterator[None]:
    """Calls `listener` with each line that is shown while the block runs, as in a log."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def print_line(line: str, file: TextIO | None = None) -> None:
    """Shows a line like `show`; as an error message if `file` is standard error."""
    if file is None:
        show(line)
    elif _screen is not None and file is sys.stderr:
        _screen.show_error(line)
    elif is_main_process():
        print(line, file=file, flush=True)
