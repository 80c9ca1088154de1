"""One JSON document per line, for programs: an event's name, the seconds since the command began, its fields."""

import contextlib
import json
import math
import sys
from typing import Any, TextIO

from trainers.distributed.console.events import Event, content_of
from trainers.distributed.console.view import View

STILL_S = 10.0


def json_line(content: Any, since_start_s: float) -> str:
    """An event as a line; a number that is not finite is null there."""
    event, *fields = content.items()
    timed = dict([event, ("after_s", round(since_start_s, 3)), *fields])
    return json.dumps(_finite(timed), ensure_ascii=False, allow_nan=False)


class JsonLines:
    """Prints each event at once; what else prints to standard output meanwhile goes to standard error."""

    tick_s = STILL_S

    def __init__(self, file: TextIO):
        self._file = file
        self._redirect = contextlib.redirect_stdout(sys.stderr)
        self._redirect.__enter__()

    def show(self, event: Event, before: View, now_s: float) -> None:
        self._print(content_of(event), now_s - before.began_s)

    def show_error(self, line: str, view: View, now_s: float) -> None:
        """For programs and, on standard error, for people."""
        self._print({"event": "error", "text": line.removeprefix("error: ")}, now_s - view.began_s)
        print(line, file=sys.stderr, flush=True)

    def tick(self, view: View, now_s: float) -> None:
        if view.stage is not None:
            content = {"event": "still", "name": view.stage.name, "took_s": round(view.stage_took_s(now_s), 3)}
            self._print(content, now_s - view.began_s)

    def close(self) -> None:
        self._redirect.__exit__(None, None, None)

    def _print(self, content: dict[str, Any], since_start_s: float) -> None:
        print(json_line(content, since_start_s), file=self._file, flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
