r"""Runs a program in its own process group: starts it, follows its output, terminates it."""

import contextlib
import ctypes
import os
import platform
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO
from uuid import uuid4

import psutil

from runtime_env.secret_arguments import SHELLS
from trainers.config.parts.script_part import ScriptPart
from trainers.config.secrets import secret_lines
from trainers.errors import ConfigError

BAR_INTERVAL_S = 5.0
# Longer lines are passed on in parts, so that the output of a program without line feeds is shown, too.
LONGEST_BYTES = 64 << 10
# Control sequences of terminals (ECMA-48), and those of xterm that end with BEL or ST; and line feeds, which move down.
_CONTROL = re.compile(
    rb"\x1b\[(?P<count>\d*)(?P<way>[AB])|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    rb"|\x1b[ -/]*[0-Z\\^-~]|(?P<down>\n)(?P<back>\r?)"
)
# A sequence that may continue in the next block.
_CUT = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]{0,255}|[ -/]*)\Z")
# Constants of prctl(2).
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LAST_LINES = 20
BLOCK_BYTES = 1 << 16
POLL_S = 0.2
# Time for which output is still read after a program has ended, while its children keep the pipe open.
DRAIN_S = 2.0
# Timeout for killing processes outside of the program's group, each of which may have started others.
END_S = 5.0
# Maximum size of a pipe.
PIPE_BYTES = 1 << 20
# Seconds between two searches for zombies without a parent.
REAP_S = 1.0
# Variable that marks all processes of a program, unless they are started with another environment.
MARK = "RAYSCRIBE_PROGRAM"
# Text that replaces secrets, as in the logs of workers.
MASK = "***"
# Variables of Ray and Rayscribe, which a program does not need, and which would make its own Ray join ours.
_OURS = re.compile(r"(RAY|RAYSCRIBE)_.*|__.*")
# Part of the paths to which Ray unpacks packages, in PYTHONPATH.
_UNPACKED = "runtime_resources"
# Variable with the folder that was prepared once for all nodes.
DATA = "RAYSCRIBE_DATA"


class OutputLines:
    """Splits a program's output into complete lines without line ends.

    A progress bar rewrites its line, with a carriage return before or after it. It is yielded every few seconds and at
    its end, since otherwise a log would consist of bars. Several bars below each other, between which the cursor moves,
    are treated as one bar that shows each in turn. Colors and cursor movements are removed.
    """

    def __init__(self) -> None:
        self._rest = b""
        # The current text of a bar, and the text that was yielded last.
        self._bar = self._given = b""
        self._given_s = -BAR_INTERVAL_S
        # Bytes at the end that need the next block; number of lines that the cursor is above the last one.
        self._cut, self._above = b"", 0

    def take(self, new: bytes, now_s: float) -> Iterator[str]:
        """Yields the lines to show now; `new` is empty if the program has printed nothing for a moment."""
        *lines, self._rest = (self._rest + self._without_control(new)).split(b"\n")
        for line in lines:
            yield from self._complete(line)
        if b"\r" in self._rest:
            self._bar = _seen_last(self._rest) or self._bar
            self._rest = self._rest[self._rest.rindex(b"\r") :]
            if self._bar != self._given and now_s - self._given_s >= BAR_INTERVAL_S:
                self._given, self._given_s = self._bar, now_s
                yield _text(self._bar)
        if len(self._rest) > LONGEST_BYTES:
            yield _text(self._rest.lstrip(b"\r"))
            self._rest = b""

    def end(self) -> Iterator[str]:
        """Yields the incomplete line when the program has ended."""
        if self._rest:
            yield from self._complete(self._rest)
            self._rest = b""

    def _without_control(self, new: bytes) -> bytes:
        """Returns text, line feeds and carriage returns; movements to another bar become carriage returns."""
        if not (b"\x1b" in new or self._cut or self._above):
            return new
        if not new and self._cut == b"\n":
            # The text of a bar below would have followed immediately.
            self._cut, self._above = b"", 0
            return b"\n"
        text = self._cut + new
        cut = _CUT.search(text)
        text, self._cut = (text[: cut.start()], cut[0]) if cut is not None else (text, b"")
        # A line feed at the end may end a line, or move to the bar below.
        is_open = text.endswith(b"\n") and not self._cut
        plain = _CONTROL.sub(self._plain, text.removesuffix(b"\n") if is_open else text)
        if is_open and self._above:
            self._cut = b"\n"
        return plain + b"\n" if is_open and not self._above else plain

    def _plain(self, match: re.Match[bytes]) -> bytes:
        if match["way"] is not None:
            lines = int(match["count"] or 1)
            self._above = max(0, self._above + (lines if match["way"] == b"A" else -lines))
            return b"\r"
        if match["down"] is None:
            return b""
        if self._above and match["back"]:
            self._above -= 1
            return b"\r"
        self._above = 0
        return match[0]

    def _complete(self, line: bytes) -> Iterator[str]:
        last = _seen_last(line) or self._bar
        if not self._bar or last != self._given:
            yield _text(last)
        self._bar = self._given = b""


def _seen_last(line: bytes) -> bytes:
    """Returns the visible text of a line that was overwritten."""
    return next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")


def _text(line: bytes) -> str:
    return line.decode(errors="replace")


class Program:
    """A running program, which is killed with the thread that started it, as when Ray kills its worker.

    All processes that the program has started are ended with it, even outside of its process group or session: this
    process becomes the parent of their orphans.

    `show` is called with each line of standard output and standard error, in order, with secrets masked.
    """

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str], show: Callable[[str], None]):
        """Starts the program in a folder; raises ConfigError if it cannot be started."""
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._mark = uuid4().hex
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                list(words),
                cwd=folder,
                env={**environment, MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Makes the program die with the thread that starts it.
                preexec_fn=partial(libc.prctl, PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 -- only libc runs
            )
        except OSError as error:
            raise ConfigError(
                f"script.command: {words[0]} cannot be started on {platform.node()} in {folder}: {error.strerror}; "
                "use a program that every node has at this path, or such an interpreter by script.python (--python)"
            ) from error
        self._show = show
        self._lines = OutputLines()
        self._secrets = secret_lines(os.environ)
        self._asked: set[psutil.Process] = set()
        self._known: set[psutil.Process] = set()
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)

    def wait(self, each: Callable[[], None]) -> int:
        """Follows the program, and calls `each` a few times a second. Returns the exit code; −n for signal n."""
        output = self._process.stdout
        assert output is not None
        os.set_blocking(output.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            ended_s, reaped_s = None, time.monotonic()
            while True:
                is_open = self._read(output, bool(selector.select(POLL_S)))
                if time.monotonic() - reaped_s >= REAP_S:
                    self._reap()
                    reaped_s = time.monotonic()
                each()
                if self._process.poll() is not None:
                    ended_s = ended_s or time.monotonic()
                    if not is_open or time.monotonic() - ended_s > DRAIN_S:
                        break
                elif not is_open:
                    time.sleep(POLL_S)
        # Reads the rest of the output, if `each` took long.
        self._take(output.read(PIPE_BYTES))
        for line in self._lines.end():
            self._say(line)
        self.kill()
        code = self._process.wait()
        self._end_orphans()
        return code

    def terminate(self) -> None:
        """Sends SIGTERM to the program, which itself ends its children, such as data loaders.

        Shells do not pass on signals, so their children get SIGTERM instead; new children, when this is called again.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in _behind_shells(psutil.Process(self._process.pid)):
                if process not in self._asked:
                    self._asked.add(process)
                    process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the program and its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _end_orphans(self) -> None:
        """Kills processes that the program has left behind, in any session."""
        end_s = time.monotonic() + END_S
        while (orphans := self._started()) and time.monotonic() < end_s:
            for orphan in orphans:
                with contextlib.suppress(psutil.NoSuchProcess):
                    orphan.kill()
            psutil.wait_procs(orphans, timeout=POLL_S)
        if orphans:
            self._say(f"(still running: {', '.join(f'{each.pid} {each.name()}' for each in orphans)})")

    def _reap(self) -> None:
        """Reaps orphans that have ended, which would otherwise stay zombies as long as this process lives."""
        for process in self._started():
            with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                if process.ppid() == os.getpid() and process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)

    def _started(self) -> list[psutil.Process]:
        """Returns the processes that the program's first process has started, in any session and with any parent."""
        found: list[psutil.Process] = []
        ours = {self._process.pid}
        # `children` yields parents before their children.
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if process.pid != self._process.pid and (process in self._known or self._is_of_it(process, ours)):
                    ours.add(process.pid)
                    found.append(process)
        self._known = {*found}
        return found

    def _is_of_it(self, process: psutil.Process, ours: set[int]) -> bool:
        """Returns True if a process belongs to the program, whose other processes are `ours`."""
        # Of a process that has ended, only parent and session are known.
        is_related = process.ppid() in ours or os.getsid(process.pid) in ours
        return is_related or process.environ().get(MARK) == self._mark

    def _read(self, output: IO[bytes], is_ready: bool) -> bool:
        """Reads available output; returns False once no process can write any more."""
        new = output.read(BLOCK_BYTES) if is_ready else None
        self._take(new)
        return new != b""

    def _take(self, new: bytes | None) -> None:
        for line in self._lines.take(new or b"", time.monotonic()):
            self._say(line)

    def _say(self, line: str) -> None:
        for secret in self._secrets:
            line = line.replace(secret, MASK)
        self.last_lines.append(line)
        self._show(line)


def _behind_shells(process: psutil.Process) -> list[psutil.Process]:
    """Returns a process or, for a shell with children, the processes for which the shell waits."""
    children: list[psutil.Process] = []
    # A process that has just ended, or of another user, has no path.
    with contextlib.suppress(psutil.Error):
        children = process.children() if Path(process.exe()).name in SHELLS else []
    return [found for child in children for found in _behind_shells(child)] or [process]


def program_words(part: ScriptPart, words: Sequence[str], work: Path, local_rank: int | None = None) -> list[str]:
    """Returns the words that start a program: its interpreter, if it is Python, and its resolved command.

    `local_rank` is passed to the program by `script.local_rank_option`, if that is set.
    """
    if part.local_rank_option is not None and local_rank is not None:
        start = 2 if words[0] == "-m" else 1
        words = [*words[:start], f"{part.local_rank_option}={local_rank}", *words[start:]]
    if not part.is_python:
        return list(words)
    python = part.python or sys.executable
    # A relative path is a virtual environment in the package.
    is_path = "/" in python and not python.startswith("/")
    return [str(work / python) if is_path else python, *words]


def program_environment(
    inherited: Mapping[str, str], given: Mapping[str, str], torchrun: Mapping[str, str], work: Path
) -> dict[str, str]:
    """Returns the environment of a program: the worker's own variables, torchrun's, and those of the recipe.

    Relative paths in the recipe's PYTHONPATH are relative to `work`, the working directory of the program.
    """
    kept = {name: value for name, value in inherited.items() if not _OURS.fullmatch(name)}
    paths = [str(work)]
    paths += [str(work / path) for path in given.get("PYTHONPATH", "").split(os.pathsep) if path]
    # Leaves out the packages that Ray has added for the worker.
    paths += [path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path and _UNPACKED not in path]
    paths = [path for path in dict.fromkeys(paths) if _UNPACKED not in path or path.startswith(str(work))]
    return {
        # Makes Python print lines immediately.
        "PYTHONUNBUFFERED": "1",
        **kept,
        **torchrun,
        **given,
        "PYTHONPATH": os.pathsep.join(paths),
    }
