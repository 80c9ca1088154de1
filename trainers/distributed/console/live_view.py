"""Renders events on a terminal: permanent lines above a live view of the current stage."""

import math
import sys
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from trainers.config.wording import counted, format_duration, format_rate
from trainers.distributed.console.events import Counted, Event, Finished, Logged, Stage, StageEnded, Validated, View
from trainers.distributed.console.plain_lines import line_of, sparkline, spent_line

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
TURNS_PER_S = 8.0
BAR_CELLS = 20
# Terminals narrower than this show no bar.
BAR_WIDTH = 72
GOOD, ODD, BAD, PALE, MAIN = "green", "yellow", "bold red", "dim", "cyan"


def lasting_lines(event: Event, before: View, now_s: float) -> list[Text]:
    """Returns the permanent lines of an event; empty if it has none. A stage gets its line when it ends."""
    if isinstance(event, Stage | StageEnded):
        return _ended(before, now_s)
    if isinstance(event, Logged) or (isinstance(event, Counted) and not event.has_ended):
        return []
    if isinstance(event, Finished):
        spent = Text(spent_line(before, now_s), style=PALE)
        return [*_ended(before, now_s), spent, Text(event.text, style=f"bold {GOOD}")]
    is_warning = isinstance(event, str) and event.startswith("warning:")
    style = MAIN if isinstance(event, Validated) else ODD if is_warning else ""
    line = line_of(event)
    return [] if line is None else [Text(line, style=style)]


def live_lines(view: View, now_s: float, width: int) -> list[Text]:
    """Returns the lines of the live view, truncated to the terminal's width; empty outside of a stage."""
    if view.stage is None:
        return []
    lines = [_stage_line(view, view.stage, now_s, width)]
    if numbers := _numbers(view):
        lines.append(Text("  ").append_text(Text(" · ").join(numbers)))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _ended(view: View, now_s: float) -> list[Text]:
    if view.stage is None or not view.stage.is_told:
        return []
    line = Text().append("✓ ", style=GOOD).append(f"{view.stage.name}: {view.stage.doing}")
    return [line.append(f" · {view.stage_took_s(now_s):.1f} s", style=PALE)]


def _stage_line(view: View, stage: Stage, now_s: float, width: int) -> Text:
    turn = SPINNER[int(now_s * TURNS_PER_S) % len(SPINNER)]
    line = Text().append(f"{turn} ", style=MAIN).append(f"{stage.name}: {stage.doing}")
    done, total, unit, eta_s = _how_far(view)
    if total:
        if width >= BAR_WIDTH:
            filled = BAR_CELLS * min(done, total) // total
            line.append("  ").append("━" * filled, style=GOOD).append("━" * (BAR_CELLS - filled), style=PALE)
        line.append(f"  {done:,}/{total:,} {unit}".rstrip())
        if eta_s is not None and math.isfinite(eta_s):
            line.append(f" · ETA {format_duration(eta_s)}")
    return line.append(f" · {format_duration(view.stage_took_s(now_s))}", style=PALE)


def _how_far(view: View) -> tuple[int, int, str, float | None]:
    """Returns units done, total, unit and seconds left; total is 0 if there is no progress to show."""
    if view.counted is not None:
        return view.counted.done, view.counted.total, view.counted.unit, view.counted.eta_s
    if view.is_training:
        return view.step, view.max_steps, "steps", view.eta_s
    return 0, 0, "", None


def _numbers(view: View) -> list[Text]:
    parts = []
    if view.losses:
        parts.append(Text(f"loss {view.losses[-1]:.4f} ").append(sparkline(view.losses), style=MAIN))
    if view.rates:
        name = next(iter(view.rates[-1]))
        course = sparkline([rates[name] for rates in view.rates if name in rates])
        full = view.rates[-1].get(f"full_context_{name}")
        both = "" if full is None else f"short context, {full:.1f}% full context "
        parts.append(Text(f"{name.upper()} {view.rates[-1][name]:.1f}% {both}").append(course, style=MAIN))
    if view.clips_per_s is not None:
        parts.append(Text(f"{format_rate(view.clips_per_s, 1)} clips/s"))
    if view.workers:
        parts.append(Text(counted(view.workers, "worker")))
    if view.quarantined:
        parts.append(Text(f"{view.quarantined} quarantined", style=ODD))
    for part in parts:
        part.rstrip()
    return parts


class Terminal:
    """Draws the live view; other output is printed above it. rich respects NO_COLOR and the terminal's size."""

    tick_s = 0.125

    def __init__(self, file: TextIO) -> None:
        self._console = Console(file=file, highlight=False)
        # Output that is redirected to a file or a pipe is not captured.
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
