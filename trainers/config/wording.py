"""Amounts, durations and texts of others as people read them. Imports next to nothing."""

import re
import time

# What moves the cursor, colors or clears (ECMA-48), and what renames the window or writes the clipboard (xterm).
_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
# Other control characters but tab and line feed, and those that change the direction of text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def counted(number: object, noun: str, one: str = "", several: str = "") -> str:
    """A number, or what stands for one, with its noun: `1 worker`, `2 workers`, `1 to 2 workers`.

    `one` or `several` follows, such as a verb: `1 clip is`, `2 clips are`.
    """
    amount = f"{number:,}" if isinstance(number, int) else f"{number:g}" if isinstance(number, float) else str(number)
    words = (noun, one) if amount == "1" else (f"{noun}s", several)
    return " ".join(filter(None, (amount, *words)))


def yaml_kind(content: object) -> str:
    """What a document holds that is no mapping."""
    return "nothing" if content is None else "a list" if isinstance(content, list) else "a single value"


def format_bytes(size: float) -> str:
    """`0 bytes`, `3.2 kB`, `1.5 GB`: with the unit in which it is at least 1."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        # As it is rounded: 999,960 bytes are 1.0 MB.
        if round(size / factor, 1) >= 1:
            return f"{size / factor:,.1f} {unit}"
    return counted(round(size), "byte")


def format_time(at_s: float) -> str:
    """Seconds since 1970 as `2026-11-20 21:16:03 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))


def format_duration(seconds: float) -> str:
    """`4 s`, `3 min 20 s`, `2 h 05 min`."""
    rounded = max(0, round(seconds))
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"


def both_contexts(rate: float, full: float | None) -> str:
    """`4.20%`; of a model that is trained at a shorter context than its own, `4.20% short context, 4.50% full context`.

    Args:
        rate: At the context that it is trained at, percent.
        full: At its own. None: that is the same, or not scored.
    """
    return f"{rate:.2f}%" if full is None else f"{rate:.2f}% short context, {full:.2f}% full context"


def format_rate(per_s: float, digits: int = 0) -> str:
    """`1,204`, with decimals after the point as `digits` says; of a small one its first two digits."""
    return f"{per_s:,.{digits}f}" if per_s >= 10 ** (1 - digits) else f"{per_s:.2g}"


def printable(text: str) -> str:
    """A text of a job or of another user without what a terminal would obey.

    Escape sequences are left out, other control characters shown.
    """
    plain = _SEQUENCE.sub("", text).replace("\r\n", "\n")
    # Of a line that was overwritten, such as a progress bar, a terminal shows the last state.
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in plain.split("\n"))
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], "\n".join(lines))
