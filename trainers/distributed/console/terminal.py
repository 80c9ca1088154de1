"""A terminal: lines that stay, above a view of the stage that changes several times a second."""

import sys
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from trainers.distributed.console.events import Event
from trainers.distributed.console.live_view import BAD, lasting_lines, live_lines
from trainers.distributed.console.view import View


class Terminal:
    """Draws the view; what else prints meanwhile comes above it. rich respects NO_COLOR and the terminal's size."""

    tick_s = 0.125

    def __init__(self, file: TextIO) -> None:
        self._console = Console(file=file, highlight=False)
        # What goes to a file or a pipe stays there.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start()

    def show(self, event: Event, before: View, now_s: float) -> None:
        for line in lasting_lines(event, before, now_s):
            self._console.print(line, soft_wrap=True)
        self.tick(before.after(event, now_s), now_s)

    def show_error(self, line: str, view: View, now_s: float) -> None:
        if sys.stderr.isatty():
            self._console.print(Text(line, style=BAD), soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def tick(self, view: View, now_s: float) -> None:
        self._live.update(Group(*live_lines(view, now_s, self._console.width)), refresh=True)

    def close(self) -> None:
        self._live.stop()
