"""Counts units towards a total."""

import time
from collections.abc import Callable

from trainers.distributed.console.events import Counted

# Seconds between two counts that a terminal shows.
SHOWN_EVERY_S = 0.5


class ProgressCounter:
    """Counts units of `what`, and shows how many are done: so seldom that it costs nothing, more seldom in a log."""

    def __init__(
        self,
        what: str,
        *,
        total: int,
        unit: str,
        show: Callable[[Counted], None],
        every_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._what, self._total, self._unit, self._show, self._clock = what, total, unit, show, clock
        self._every_s = every_s
        self._start = self._logged = self._shown = clock()
        self._count = 0
        self._note = ""

    def advance(self, count: int, note: str = "") -> None:
        """Counts further units; `note` ends the line."""
        self._count += count
        self._note = note
        now = self._clock()
        if self._count >= self._total:
            return
        is_logged = now - self._logged >= self._every_s
        if is_logged or now - self._shown >= SHOWN_EVERY_S:
            self._shown = now
            self._logged = now if is_logged else self._logged
            self._show(self._counted(now, is_logged=is_logged))

    def done(self) -> None:
        self._show(self._counted(self._clock(), has_ended=True))

    def _counted(self, now: float, *, is_logged: bool = True, has_ended: bool = False) -> Counted:
        took_s = now - self._start
        return Counted(self._what, self._count, self._total, self._unit, took_s, self._note, is_logged, has_ended)
