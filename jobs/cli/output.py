"""Prints runs, attempts, events and usage as text, and as JSON."""

import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from rich.cells import cell_len, set_cell_size

from jobs.model import Attempt, AttemptState, Event, Run, RunState
from trainers.config.storage_location import is_url
from trainers.config.wording import both_contexts, counted, format_duration, printable
from trainers.distributed.console.plain_lines import sparkline
from trainers.errors import ConfigError
from trainers.storage.json_files import to_json

ForceOption = Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")]
CURVE_CELLS = 40
STATE = "STATE"
# Colors of states; others are shown as plain text.
COLORS: dict[str, str] = {
    RunState.SUCCEEDED: "green",
    RunState.FAILED: "red",
    **dict.fromkeys((RunState.STOPPED, RunState.RETRYING, RunState.PREEMPTED), "yellow"),
    **dict.fromkeys((RunState.PREPARING_DATA, RunState.TRAINING, RunState.EVALUATING), "cyan"),
}


def warn(text: str | None) -> None:
    """Prints a warning, if any, to stderr."""
    if text is not None:
        echo(f"warning: {text}", err=True)


def echo(text: str, *, err: bool = False) -> None:
    """Prints a text, made safe by `printable`, since it may come from a job or another user."""
    typer.echo(printable(text), err=err)


def as_json(content: Any) -> None:
    """Prints one JSON document, in which models are objects with their fields, and times are seconds since 1970."""
    typer.echo(to_json(content, "the output", indent=2, default=lambda item: item.model_dump(mode="json")))


def write_file(path: Path | None, text: str, option: str, *, force: bool) -> None:
    """Writes the file that an option names, completely or not at all; without a path, prints to standard output.

    Raises:
        ConfigError: the file exists and `force` is False, or it cannot be written.
    """
    if path is None:
        typer.echo(text, nl=False)
        return
    target = path.resolve()
    if target.exists() and not (force and target.is_file()):
        fix = "add --force to replace it, or use another file" if target.is_file() else "name a file"
        raise ConfigError(f"{option} {path}: already exists: {fix}")
    part = target.with_name(f".{target.name}.{uuid4().hex}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror or error}: name a file that can be written") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def runs_table(runs: Sequence[Run]) -> None:
    """Prints one line per run."""
    now_s = time.time()
    rows = [
        (
            run.id,
            run.state.value,
            run.queue or "-",
            str(run.priority) if run.queue else "-",
            run.user,
            format_duration(max(0.0, now_s - run.submitted_s)),
            wer_cell(run),
            run.reason,
        )
        for run in runs
    ]
    print_table(("RUN", STATE, "QUEUE", "PRIORITY", "USER", "AGE", "WER", "REASON"), rows)


def wer_cell(run: Run) -> str:
    """Returns the WER on the test set, else the best on the validation set, else the last one; "" if unknown."""
    known = run.progress.shown_wers if run.progress is not None else []
    return next((both_contexts(wer, full, base) for _, wer, full, base in known), "")


def run_details(run: Run, attempts: Sequence[Attempt]) -> None:
    """Prints one run and its attempts."""
    echo(state_line(run))
    total = ", ".join(f"{value:g} {name}" for name, value in run.gang.total.items())
    lines = {
        **_origin(run),
        "gang": f"{counted(run.gang.num_workers, 'worker')}, {total} in total",
        "run folder": _folder_text(run),
    }
    if run.progress is not None and len(run.progress.wers) > 1:
        first, *_, last = run.progress.wers
        course = f"{first:.2f}% to {last:.2f}% {sparkline(run.progress.wers, CURVE_CELLS)}"
        lines["WER"] = course if run.progress.full_context_wer is None else f"{course} (short context)"
    if run.progress is not None and (known := run.progress.shown_wers):
        lines["scores"] = " · ".join(f"{name}: WER {both_contexts(wer, full, base)}" for name, wer, full, base in known)
    if run.progress is not None and run.progress.restarts:
        lines["workers"] = run.progress.restarts_text
    if run.depends_on:
        lines["depends on"] = ", ".join(run.depends_on)
    if run.tags:
        lines["tags"] = ", ".join(run.tags)
    if run.exit_code is not None:
        lines["exit code"] = str(run.exit_code)
    for name, text in lines.items():
        echo(f"  {name:<11}{text}")
    for attempt in attempts:
        echo(f"  {attempt_line(attempt, run)}")


def _origin(run: Run) -> dict[str, str]:
    if run.queue:
        by = f"{clock(run.submitted_s)} by {run.user}, queue {run.queue}, priority {run.priority}"
        return {"submitted": by, "cluster": run.address}
    return {"started": f"{clock(run.submitted_s)} by {run.user}, without a queue", "cluster": run.address or "its own"}


def _folder_text(run: Run) -> str:
    is_missing = not run.queue and not is_url(run.run_folder) and not Path(run.run_folder).exists()
    return f"{run.run_folder}, which does not exist" if is_missing else run.run_folder


def attempt_line(attempt: Attempt, run: Run) -> str:
    """Formats an attempt: `attempt 2: NODE_LOST after 3 min 20 s, from checkpoint-…`."""
    start = f"from {attempt.resume_from or run.beginning}"
    took = format_duration(attempt.duration_s(time.time()))
    # Without a queue there is no Ray job.
    accepted = "with Ray" if attempt.submission_id else "running"
    live = "being submitted" if attempt.state == AttemptState.SUBMITTING else accepted
    end = f"{attempt.cause} after {took}" if attempt.cause else f"{live}, {took} so far"
    code = f", exit code {attempt.exit_code}" if attempt.exit_code is not None else ""
    message = f" · {attempt.message}".replace("\n", " ") if attempt.message else ""
    return f"attempt {attempt.number}: {end}{code}, {start}{message}"


def event_line(event: Event) -> str:
    """Formats an event: `2026-11-20 21:16:03Z  QUEUED → SETTING_UP  attempt 1 starts from scratch`."""
    move = event.state.value if event.before in (None, event.state) else f"{event.before} → {event.state}"
    return f"{clock(event.at_s)}  {move:<36}  {event.text}"


def clock(at_s: float) -> str:
    """Formats a time to the second, in UTC."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}Z"


def percent(rate: float | None) -> str:
    """Formats a rate: `4.20%`, or `-` if it is not known."""
    return "-" if rate is None else f"{rate:.2f}%"


def state_line(run: Run) -> str:
    """Formats a run's state: `whisper-sr: QUEUED · position 2 in queue default`."""
    return f"{run.id}: {run.state} · {run.reason}"


def next_steps(run: Run, service: str | None) -> list[str]:
    """Returns lines with what a user can do with a run now, with commands to copy."""
    of_service = ["--service", service] if service else []

    def command(*words: str) -> str:
        return shlex.join(["rayscribe", *words, *of_service])

    if not run.state.ended:
        return [f"follow it: {command('logs', run.id, '--follow')}", f"stop it: {command('stop', run.id)}"]
    lines = [f"what it printed: {command('logs', run.id)}", f"what happened to it: {command('events', run.id)}"]
    if run.state != RunState.SUCCEEDED:
        return [*lines, f"continue it: {command('resume', run.id, '--follow')}"]
    left = "what is kept of its output" if run.config.get("trainer") == "script" else "its model and scores"
    return [*lines, f"{left}: {run.run_folder}"]


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table; on a terminal, truncated to its width and with states in color."""
    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_terminal else None
    with_color = on_terminal and not os.environ.get("NO_COLOR")
    for line in table_lines(head, rows, width=width, with_color=with_color):
        typer.echo(line)


def table_lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None, with_color: bool = False
) -> list[str]:
    """Returns the lines of a table, truncated to `width` cells of a terminal if given, and optionally with colors."""
    table = [[printable(cell).replace("\n", " ") for cell in row] for row in [head, *rows]]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        padded = [set_cell_size(cell, size) for cell, size in zip(row, widths, strict=True)]
        line = "  ".join(padded).rstrip()
        if width is not None and cell_len(line) > width:
            line = f"{set_cell_size(line, width - 1)}…"
        lines.append(_colored(line, head, padded) if with_color else line)
    return lines


def _colored(line: str, head: Sequence[str], padded: Sequence[str]) -> str:
    """Returns the line with its state in color, unless the state is truncated."""
    if STATE not in head:
        return line
    column = head.index(STATE)
    start, state = sum(len(cell) + 2 for cell in padded[:column]), padded[column].rstrip()
    if state not in COLORS or not line.startswith(state, start):
        return line
    return f"{line[:start]}{typer.style(state, fg=COLORS[state])}{line[start + len(state) :]}"
