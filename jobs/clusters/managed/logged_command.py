"""Commands that take minutes: their output goes to a file, what tells of progress is shown, and they have a timeout."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Timer

from jobs.errors import ClusterError
from trainers.distributed.machine import make_private_folder

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Of Ray's record style: time, level, file and line.
PREFIX = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+\s+\w+ \S+:\d+ -- ")
PROGRESS = re.compile(
    r"^(\[\d+/\d+\]|Launched|Acquiring|Fetched IP|Received|New status|Terminated|Requested \d+|\d+ nodes remaining|"
    r"Updating cluster|SSH still not|`.*` failed)"
)
PROBLEM = re.compile(
    r"error|fail|denied|refused|timed out|time-?out|not found|no such|cannot|could not|unable|exception|quota|!!!",
    re.IGNORECASE,
)
SHOWN_LINES = 8
# A line of progress that repeats itself is shown this often. Seconds.
REPEAT_S = 30.0


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str],
    timeout_s: float,
    say: Callable[[str], None],
    doing: str,
) -> None:
    """Runs a command to its end, or for `timeout_s`; its output goes to a file, and what tells of progress is shown.

    Raises:
        ClusterError: it failed, or took too long; with the lines of its output that say why.
    """
    make_private_folder(log.parent)
    start_s, lines = time.monotonic(), list[str]()
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    timer = Timer(timeout_s, _end, [process])
    timer.start()
    try:
        with log.open("w", encoding="utf-8") as file:
            for line in _read(process, start_s, say):
                file.write(f"{line}\n")
                file.flush()
                lines.append(line)
        code = process.wait()
    finally:
        timer.cancel()
        _end(process)
        process.communicate()
    if code != 0:
        late = time.monotonic() - start_s >= timeout_s
        how = f"took longer than {timeout_s:.0f} s" if late else f"failed (exit code {code})"
        raise ClusterError(f"{doing} {how}:\n" + "\n".join(telling(lines)) + f"\nall of it: {log}")


def _read(process: "subprocess.Popen[bytes]", start_s: float, say: Callable[[str], None]) -> Iterator[str]:
    """The lines of its output; those that tell of progress are shown."""
    assert process.stdout is not None
    last, shown_s = "", start_s
    for raw in process.stdout:
        line = plain(raw.decode(errors="replace"))
        text = line.strip()
        now_s = time.monotonic()
        if PROGRESS.match(text) and (text != last or now_s - shown_s >= REPEAT_S):
            say(f"{now_s - start_s:4.0f} s  {text}")
            last, shown_s = text, now_s
        yield line


def plain(text: str) -> str:
    """A line without colors, time and place in Ray's code."""
    return PREFIX.sub("", ANSI.sub("", text).replace("\r", "").rstrip())


def telling(lines: Sequence[str]) -> list[str]:
    """The last lines that say what went wrong; where none does, the last lines."""
    there = [line for line in lines if line.strip()]
    return ([line for line in there if PROBLEM.search(line)] or there)[-SHOWN_LINES:]


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
