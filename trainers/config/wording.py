"""Formats amounts and durations, and makes other people's texts safe to print. Imports little."""

import re
import time

# Sequences that move the cursor, color or clear (ECMA-48), rename the window or write the clipboard (xterm).
_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
# Other control characters except tab and line feed, and those that change the direction of text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def counted(number: object, noun: str, one: str = "", several: str = "") -> str:
    """Returns a number, or a text in its place, with its noun: `1 worker`, `2 workers`, `1 to 2 workers`.

    `one` or `several` is appended, such as a verb: `1 clip is`, `2 clips are`.
    """
    amount = f"{number:,}" if isinstance(number, int) else f"{number:g}" if isinstance(number, float) else str(number)
    words = (noun, one) if amount == "1" else (f"{noun}s", several)
    return " ".join(filter(None, (amount, *words)))


def headline_of(message: str) -> str:
    """Returns the first line of a message, with the next one if it ends in a colon."""
    first, _, others = message.partition("\n")
    following = others.partition("\n")[0].strip()
    return f"{first} {following}" if first.endswith(":") and following else first


def yaml_kind(content: object) -> str:
    """Returns a description of a document that is not a mapping."""
    return "nothing" if content is None else "a list" if isinstance(content, list) else "a single value"


def format_bytes(size: float) -> str:
    """Returns a size as `0 bytes`, `3.2 kB` or `1.5 GB`, in the largest unit in which it is at least 1."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        # Compared after rounding, so that 999,960 bytes are 1.0 MB.
        if round(size / factor, 1) >= 1:
            return f"{size / factor:,.1f} {unit}"
    return counted(round(size), "byte")


def format_time(at_s: float) -> str:
    """Returns seconds since 1970 as `2026-11-20 21:16:03 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))


def format_duration(seconds: float) -> str:
    """Returns a duration as `4 s`, `3 min 20 s` or `2 h 05 min`."""
    rounded = max(0, round(seconds))
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"


def both_contexts(rate: float, full: float | None, base: float | None = None) -> str:
    """Returns `4.20%`, or `4.20% short context, 4.50% full context` for a model trained at a shorter context.

    All are in percent; `full` is None if the contexts are the same, or the full one was not scored. `base` is the rate
    before the training at the longer of the contexts, if known: `15.40% → 4.20%`.
    """
    before = f"{base:.2f}% → " if base is not None else ""
    return f"{before}{rate:.2f}%" if full is None else f"{rate:.2f}% short context, {before}{full:.2f}% full context"


def format_rate(per_s: float, digits: int = 0) -> str:
    """Returns a rate as `1,204`, with `digits` decimals; a small rate has two significant digits."""
    return f"{per_s:,.{digits}f}" if per_s >= 10 ** (1 - digits) else f"{per_s:.2g}"


def printable(text: str) -> str:
    """Returns another user's or a job's text without sequences that a terminal would execute.

    Escape sequences are removed, and other control characters are escaped.
    """
    plain = _SEQUENCE.sub("", text).replace("\r\n", "\n")
    # Of an overwritten line, such as a progress bar, only the last state is kept, as on a terminal.
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in plain.split("\n"))
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], "\n".join(lines))
