"""Console output: lines that are printed once for all ranks, and progress."""

import os
import time
from collections.abc import Callable
from typing import TextIO

from trainers.config.durations import format_duration


def is_main_process() -> bool:
    """Whether this is torchrun's rank 0, or a process without torchrun; known before the ranks have joined."""
    return os.environ.get("RANK", "0") == "0"


def print_line(line: str, file: TextIO | None = None) -> None:
    """Prints a line at once, through pipes too; under torchrun, once for all ranks."""
    if is_main_process():
        print(line, file=file, flush=True)


class Progress:
    """Counts units towards a total and logs a line, which begins with `what`, every few seconds.

    Lines are for logs, so none is overwritten.
    """

    def __init__(self, what: str, *, total: int, unit: str, log: Callable[[str], None], every_s: float = 2.0):
        self._what, self._total, self._unit, self._log = what, total, unit, log
        self._every_s = every_s
        self._start = self._last = time.monotonic()
        self._count = 0
        self._note = ""

    def advance(self, count: int, note: str = "") -> None:
        """Counts further units; `note` ends the line."""
        self._count += count
        self._note = note
        now = time.monotonic()
        if now - self._last >= self._every_s and self._count < self._total:
            self._last = now
            rate = self._count / max(now - self._start, 1e-9)
            rest = format_duration((self._total - self._count) / max(rate, 1e-9))
            bar = "█" * (20 * self._count // self._total)
            self._log(self._line(f"{bar:░<20} {self._count:,}/{self._total:,} {self._unit}", rate, f"ETA {rest}"))

    def done(self) -> None:
        elapsed = max(time.monotonic() - self._start, 1e-9)
        self._log(self._line(f"{self._count:,} {self._unit}", self._count / elapsed, f"in {format_duration(elapsed)}"))

    def _line(self, amount: str, rate: float, end: str) -> str:
        note = f" · {self._note}" if self._note else ""
        return f"{self._what}: {amount} · {rate:,.0f} {self._unit}/s · {end}{note}"
