"""Prints runs, attempts, events and usage as text, and as JSON."""

import re
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import typer

from jobs.model import Attempt, AttemptState, Event, Run
from trainers.config.durations import format_duration
from trainers.storage.json_files import to_json

LONGEST_REASON = 100
# What moves the cursor, colors or clears (ECMA-48), and what renames the window or writes the clipboard (xterm).
_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
# Other control characters but tab and line feed, and those that change the direction of text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def echo(text: str, *, err: bool = False) -> None:
    """Prints a text that may come from a job or another user, as `printable` gives it."""
    typer.echo(printable(text), err=err)


def printable(text: str) -> str:
    """The text without what a terminal would obey: escape sequences are left out, other control characters shown."""
    plain = _SEQUENCE.sub("", text).replace("\r\n", "\n")
    # Of a line that was overwritten, such as a progress bar, a terminal shows the last state.
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in plain.split("\n"))
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], "\n".join(lines))


def as_json(content: Any) -> None:
    """Prints one JSON document; models by their fields, times as seconds since 1970."""
    typer.echo(to_json(content, "the output", indent=2, default=lambda item: item.model_dump(mode="json")))


def runs_table(runs: Sequence[Run]) -> None:
    """Prints one line per run."""
    now_s = time.time()
    rows = [
        (
            run.id,
            run.state.value,
            run.queue,
            str(run.priority),
            run.user,
            format_duration((run.ended_s or now_s) - run.submitted_s),
            _short(run.reason),
        )
        for run in runs
    ]
    _table(("RUN", "STATE", "QUEUE", "PRIORITY", "USER", "AGE", "REASON"), rows)


def run_details(run: Run, attempts: Sequence[Attempt]) -> None:
    """Prints one run and its attempts."""
    echo(f"{run.id}: {run.state} · {run.reason}")
    total = ", ".join(f"{value:g} {name}" for name, value in run.gang.total.items())
    lines = {
        "submitted": f"{clock(run.submitted_s)} by {run.user}, queue {run.queue}, priority {run.priority}",
        "cluster": run.address,
        "gang": f"{run.gang.num_workers} workers, {total} in total",
        "run folder": run.run_folder,
    }
    if run.depends_on:
        lines["depends on"] = ", ".join(run.depends_on)
    if run.tags:
        lines["tags"] = ", ".join(run.tags)
    if run.exit_code is not None:
        lines["exit code"] = str(run.exit_code)
    for name, text in lines.items():
        echo(f"  {name:<11}{text}")
    for attempt in attempts:
        echo(f"  {attempt_line(attempt)}")


def attempt_line(attempt: Attempt) -> str:
    """`attempt 2: NODE_LOST after 3 min 20 s, from checkpoint-…`."""
    start = f"from {attempt.resume_from}" if attempt.resume_from else "from scratch"
    took = format_duration(attempt.duration_s(time.time()))
    live = "being submitted" if attempt.state == AttemptState.SUBMITTING else "with Ray"
    end = f"{attempt.cause} after {took}" if attempt.cause else f"{live}, {took} so far"
    code = f", exit code {attempt.exit_code}" if attempt.exit_code is not None else ""
    message = f" · {_short(attempt.message)}" if attempt.message else ""
    return f"attempt {attempt.number}: {end}{code}, {start}{message}"


def event_line(event: Event) -> str:
    """`2026-11-20 21:16:03Z  QUEUED → SETTING_UP  attempt 1 starts from scratch`."""
    move = event.state.value if event.before in (None, event.state) else f"{event.before} → {event.state}"
    return f"{clock(event.at_s)}  {move:<36}  {event.text}"


def clock(at_s: float) -> str:
    """Formats a time to the second, in UTC."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}Z"


def usage_table(by: str, rows: Iterable[Any]) -> None:
    """Prints one line per key."""
    _table(
        (by.upper(), "ATTEMPTS", "HOURS", "CPU-HOURS", "GPU-HOURS"),
        [
            (row.key, str(row.attempts), f"{row.wall_hours:.2f}", f"{row.cpu_hours:.2f}", f"{row.gpu_hours:.2f}")
            for row in rows
        ],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _short(text: str) -> str:
    line = text.replace("\n", " ")
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 1]}…"
