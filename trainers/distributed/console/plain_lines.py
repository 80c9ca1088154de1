"""Renders events as lines of a log. Pure."""

import math
from collections.abc import Callable, Sequence

from trainers.config.wording import format_duration, format_rate
from trainers.distributed.console.events import Counted, Event, Logged, Stage, StageEnded, Stepped, View

# Seconds of silence before a "still …" line; doubles with each such line, up to a minute.
FIRST_STILL_S, LONGEST_STILL_S = 10.0, 60.0
LEVELS = "▁▂▃▄▅▆▇█"
SPARK_CELLS = 10


def line_of(event: Event, since_start_s: float | None = None) -> str | None:
    """Returns the line of an event; None if it has none. A stage has a line only if `since_start_s` is known."""
    if isinstance(event, str):
        return event
    if isinstance(event, Stage):
        told = event.is_told and since_start_s is not None
        return f"{event.name}: {event.doing} · after {since_start_s:.1f} s" if told else None
    if isinstance(event, Stepped | StageEnded):
        return None
    if isinstance(event, Counted):
        return _counted(event) if event.is_logged else None
    if isinstance(event, Logged):
        return _logged(event)
    return event.text


def as_lines(print_line: Callable[[str], None]) -> Callable[[Event], None]:
    """Returns a listener that passes events to `print_line` as lines."""

    def show(event: Event) -> None:
        if (line := line_of(event)) is not None:
            print_line(line)

    return show


def still_line(view: View, now_s: float, *, quiet_s: float, stills: int) -> str | None:
    """Returns the line that says that a stage is still running; None if it is not due yet.

    `quiet_s` is the time since the last line, `stills` the number of such lines since the last other line.
    """
    if view.stage is None or quiet_s < min(FIRST_STILL_S * 2**stills, LONGEST_STILL_S):
        return None
    took = format_duration(now_s - view.stage_began_s)
    return f"{view.stage.name}: still {view.stage.doing}{_how_far(view)}, {took}"


def spent_line(view: View, now_s: float) -> str:
    """Returns a line with the time that each stage took."""
    parts = (f"{name} {seconds:.1f} s" for name, seconds in view.spent_until(now_s).items())
    return f"time: {' · '.join(parts)}, together {format_duration(now_s - view.began_s)}"


def sparkline(values: Sequence[float], cells: int = SPARK_CELLS) -> str:
    """Returns the last values as bars, scaled from the lowest to the highest; values that are not finite are gaps."""
    shown = values[-cells:]
    known = [value for value in shown if math.isfinite(value)]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    scale = (len(LEVELS) - 1) / ((high - low) or 1.0)
    return "".join(LEVELS[round((value - low) * scale)] if math.isfinite(value) else " " for value in shown)


def _how_far(view: View) -> str:
    if view.counted is not None:
        return f", {view.counted.done:,} of {view.counted.total:,} {view.counted.unit}"
    if view.is_training:
        return f", step {view.step}/{view.max_steps}"
    return ""


def _counted(event: Counted) -> str:
    if event.has_ended:
        amount, end = f"{event.done:,} {event.unit}", f"in {format_duration(event.took_s)}"
    else:
        bar = "█" * (20 * event.done // event.total)
        amount = f"{bar:░<20} {event.done:,}/{event.total:,} {event.unit}"
        end = f"ETA {format_duration(event.eta_s)}"
    note = f" · {event.note}" if event.note else ""
    return f"{event.what}: {amount} · {format_rate(event.per_s)} {event.unit}/s · {end}{note}"


def _logged(event: Logged) -> str:
    further = "".join(f" · {name} {value:.4f}" for name, value in event.further.items())
    speed = f"{format_rate(event.clips_per_s, 1)} clips/s · {format_rate(event.audio_s_per_s, 1)} audio s/s"
    return (
        f"step {event.step}/{event.max_steps} · epoch {event.epoch:.1f} · loss {event.loss:.4f}{further} · "
        f"{speed} · ETA {format_duration(event.eta_s)}"
    )
