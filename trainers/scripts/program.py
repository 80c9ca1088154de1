r"""A program in a process group of its own: started, followed, asked to end, ended; and the lines that it writes."""

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
from pathlib import Path
from typing import IO
from uuid import uuid4

import psutil

from runtime_env.secret_arguments import SHELLS
from trainers.config.parts.script_part import ScriptPart
from trainers.config.secrets import secret_lines
from trainers.errors import ConfigError

BAR_INTERVAL_S = 5.0
# A line this long is given in parts, so that a program that writes no line end is seen, too.
LONGEST_BYTES = 64 << 10
# Control sequences of terminals (ECMA-48), and those of xterm that end with BEL or ST; and line feeds, which go down.
_CONTROL = re.compile(
    rb"\x1b\[(?P<count>\d*)(?P<way>[AB])|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    rb"|\x1b[ -/]*[0-Z\\^-~]|(?P<down>\n)(?P<back>\r?)"
)
# One that may go on in what is written next.
_CUT = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]{0,255}|[ -/]*)\Z")
# Of prctl(2).
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LAST_LINES = 20
BLOCK_BYTES = 1 << 16
POLL_S = 0.2
# For how long output is read that children of an ended program still hold open.
DRAIN_S = 2.0
# For how long what has left the program's group is ended, each of which may have started others.
END_S = 5.0
# As much as a pipe holds at most.
PIPE_BYTES = 1 << 20
# How often those that have ended without a parent are looked for.
REAP_S = 1.0
# By which all that a program starts is known, unless it starts with another environment.
MARK = "RAYSCRIBE_PROGRAM"
# In place of a secret, as in the logs of workers.
MASK = "***"
# Of Ray itself and of this package, whose values mean nothing to a program, or would make its own Ray join ours.
_OURS = re.compile(r"(RAY|RAYSCRIBE)_.*|__.*")
# Where Ray unpacks packages, in a path of its PYTHONPATH.
_UNPACKED = "runtime_resources"
# Where a program finds what was prepared once for all nodes.
DATA = "RAYSCRIBE_DATA"


class OutputLines:
    """Takes bytes of a program's output as they come, and gives complete lines without their ends.

    A progress bar writes its line again and again, with a carriage return before or after it. It is shown every few
    seconds, and at its end: the log of a night would be nothing but bars. Of several bars below each other, between
    which the cursor moves, each is one in turn. What colors and moves is left out.
    """

    def __init__(self) -> None:
        self._rest = b""
        # What a bar shows now, and what of it was given last.
        self._bar = self._given = b""
        self._given_s = -BAR_INTERVAL_S
        # What came last and waits for what follows; by how many lines the cursor is above the last one.
        self._cut, self._above = b"", 0

    def take(self, new: bytes, now_s: float) -> Iterator[str]:
        """The lines that are to be shown now.

        Args:
            new: What the program wrote since; nothing where it has been silent for a moment.
            now_s: Seconds from any origin.
        """
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
        """What was not complete when the program ended."""
        if self._rest:
            yield from self._complete(self._rest)
            self._rest = b""

    def _without_control(self, new: bytes) -> bytes:
        """Text, line feeds and carriage returns; where the cursor goes to another bar, a carriage return."""
        if not (b"\x1b" in new or self._cut or self._above):
            return new
        if not new and self._cut == b"\n":
            # A bar below would have followed at once.
            self._cut, self._above = b"", 0
            return b"\n"
        text = self._cut + new
        cut = _CUT.search(text)
        text, self._cut = (text[: cut.start()], cut[0]) if cut is not None else (text, b"")
        # Whether this ends a line or goes to the bar below is not known yet.
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
    """What is left of a line that was overwritten."""
    return next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")


def _text(line: bytes) -> str:
    return line.decode(errors="replace")


class Program:
    """A running program; it dies with the thread that started it, as when Ray kills its worker.

    What it has started ends with it, also what has left its process group or its session: the process that starts a
    program becomes the parent of all that lose theirs.

    `show` gets each line of its output, standard output and standard error in the order in which they came, without
    the secrets of the job.
    """

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str], show: Callable[[str], None]):
        """Starts it in a folder.

        Raises:
            ConfigError: it cannot be started; names the program and the node.
        """
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
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
                preexec_fn=_die_with_parent(),  # noqa: PLW1509 -- it calls one function of libc, loaded before
            )
        except OSError as error:
            raise ConfigError(
                f"script.command: {words[0]} cannot be started on {platform.node()} in {folder}: {error.strerror}; "
                "name a program that every node has at this path, or such an interpreter with script.python (--python)"
            ) from error
        self._show = show
        self._lines = OutputLines()
        self._secrets = secret_lines(os.environ)
        self._asked: set[psutil.Process] = set()
        self._known: set[psutil.Process] = set()
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)

    def wait(self, each: Callable[[], None]) -> int:
        """Follows it to its end; `each` is called a few times a second. Gives its exit code, −n for signal n."""
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
        # What it wrote last, if `each` took longer.
        self._take(output.read(PIPE_BYTES))
        for line in self._lines.end():
            self._say(line)
        self.kill()
        code = self._process.wait()
        self._end_orphans()
        return code

    def terminate(self) -> None:
        """Asks it to end; its children, such as loaders of data, it ends itself.

        A shell passes nothing on, so what it runs is asked instead, and what it has started since when called again.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in _behind_shells(psutil.Process(self._process.pid)):
                if process not in self._asked:
                    self._asked.add(process)
                    process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and all its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _end_orphans(self) -> None:
        """Ends what the program has started and left behind, in whatever session."""
        end_s = time.monotonic() + END_S
        while (orphans := self._started()) and time.monotonic() < end_s:
            for orphan in orphans:
                with contextlib.suppress(psutil.NoSuchProcess):
                    orphan.kill()
            psutil.wait_procs(orphans, timeout=POLL_S)
        if orphans:
            self._say(f"(still running: {', '.join(f'{each.pid} {each.name()}' for each in orphans)})")

    def _reap(self) -> None:
        """Lets go of what has ended after its parent, which would be a zombie for as long as this process lives."""
        for process in self._started():
            with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                if process.ppid() == os.getpid() and process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)

    def _started(self) -> list[psutil.Process]:
        """What the program has started, in whatever session and whoever is its parent now; not its first process."""
        found: list[psutil.Process] = []
        ours = {self._process.pid}
        # Parents come before their children.
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if process.pid != self._process.pid and (process in self._known or self._is_of_it(process, ours)):
                    ours.add(process.pid)
                    found.append(process)
        self._known = {*found}
        return found

    def _is_of_it(self, process: psutil.Process, ours: set[int]) -> bool:
        """Whether a process is of the program, whose other processes are `ours`."""
        # Of one that has ended only parent and session are known.
        is_related = process.ppid() in ours or os.getsid(process.pid) in ours
        return is_related or process.environ().get(MARK) == self._mark

    def _read(self, output: IO[bytes], is_ready: bool) -> bool:
        """Reads what there is; False once nobody can write any more."""
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
    """A process, or in place of a shell that waits for others, these."""
    children = process.children() if _is_shell(process) else []
    return [found for child in children for found in _behind_shells(child)] or [process]


def _is_shell(process: psutil.Process) -> bool:
    # One that has just ended, or of another user, has no path.
    with contextlib.suppress(psutil.Error):
        return Path(process.exe()).name in SHELLS
    return False


def _die_with_parent() -> Callable[[], None]:
    """What a new process calls to be killed with the thread that starts it; Linux only."""
    libc = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    return ask


def program_words(part: ScriptPart, words: Sequence[str], work: Path, local_rank: int | None = None) -> list[str]:
    """The interpreter, where there is one, and the words of the command with their placeholders replaced.

    A `local_rank` is given to the program as it asks for it.
    """
    if part.local_rank_option is not None and local_rank is not None:
        start = 2 if words[0] == "-m" else 1
        words = [*words[:start], f"{part.local_rank_option}={local_rank}", *words[start:]]
    if not part.is_python:
        return list(words)
    python = part.python or sys.executable
    # A virtual environment in the package.
    is_path = "/" in python and not python.startswith("/")
    return [str(work / python) if is_path else python, *words]


def program_environment(
    inherited: Mapping[str, str], given: Mapping[str, str], torchrun: Mapping[str, str], work: Path
) -> dict[str, str]:
    """What a program sees: the node's and the job's own variables, the recipe's, and torchrun's.

    Args:
        inherited: Of the worker.
        given: `script.env`, with placeholders replaced, and the accelerator's; a relative PYTHONPATH is one in `work`.
        torchrun: See `backend.RankContext.environment`.
        work: Where the program runs.
    """
    kept = {name: value for name, value in inherited.items() if not _OURS.fullmatch(name)}
    paths = [str(work)]
    paths += [str(work / path) for path in given.get("PYTHONPATH", "").split(os.pathsep) if path]
    # Without the packages that Ray has put there for the worker.
    paths += [path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path and _UNPACKED not in path]
    paths = [path for path in dict.fromkeys(paths) if _UNPACKED not in path or path.startswith(str(work))]
    return {
        # Lines are followed as they come.
        "PYTHONUNBUFFERED": "1",
        **kept,
        **torchrun,
        **given,
        "PYTHONPATH": os.pathsep.join(paths),
    }
