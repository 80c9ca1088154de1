"""Lines of a log: where standard output is no terminal."""

import sys
from typing import TextIO

from trainers.distributed.console.events import Event, Finished, Stage
from trainers.distributed.console.plain_lines import line_of, spent_line, still_line
from trainers.distributed.console.view import View


class LogOutput:
    """Prints each line at once, and one now and then while a stage goes on without any."""

    tick_s = 1.0

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._last_s: float | None = None
        # Lines since any other, or since the stage began, that it goes on.
        self._stills = 0

    def show(self, event: Event, before: View, now_s: float) -> None:
        line = line_of(event, now_s - before.began_s)
        if isinstance(event, Finished):
            line = f"{spent_line(before, now_s)}\n{line}"
        if line is not None or isinstance(event, Stage):
            self._stills, self._last_s = 0, now_s
        if line is not None:
            print(line, file=self._file, flush=True)

    def show_error(self, line: str, view: View, now_s: float) -> None:
        print(line, file=sys.stderr, flush=True)

    def tick(self, view: View, now_s: float) -> None:
        quiet_s = now_s - (view.began_s if self._last_s is None else self._last_s)
        line = still_line(view, now_s, quiet_s=quiet_s, stills=self._stills)
        if line is not None:
            self._stills, self._last_s = self._stills + 1, now_s
            print(line, file=self._file, flush=True)

    def close(self) -> None:
        """Nothing was changed."""
