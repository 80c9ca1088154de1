"""Processes of this machine that begin with everything imported: forked from one that has nothing but imported it.

Python's fork server, which a program that calls us in its own `__main__` needs no guard for. Its process id, by which
it is waited for and ended, Python keeps to itself: it is read here alone, from `multiprocessing.forkserver`.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker, util
from types import ModuleType
from typing import Any

from trainers.config.parts.scaling_part import ScalingPart
from trainers.distributed.machine import ASLEEP, end_with_parent
from trainers.distributed.signals import SIGNALS

# Ray sets it for its workers, too, unless the user has.
THREADS = "OMP_NUM_THREADS"
# They compute on CPUs: DeepSpeed, where it is imported, need not look for a GPU, nor warn that there is none.
ACCELERATOR = {"DS_ACCELERATOR": "cpu"}
PROCESSES = multiprocessing.get_context("forkserver")
# The exit code that `multiprocessing` gives a process whose server is gone.
LOST_CODE = 255
# How long a server may take to end once its connections are closed.
END_S, POLL_S = 5.0, 0.02
# What the server is started with, again where it was killed.
_VARIABLES: dict[str, str] = {}


class WorkerCrashedError(Exception):
    """A process ended without a last message, or was not started since the server had ended."""


def threads_of(scaling: ScalingPart) -> int:
    """As many as Ray has a worker compute with, so that a run goes on to the last bit on either."""
    return max(1, int(scaling.worker_resources["CPU"]))


def start_server(modules: Sequence[str], threads: int) -> None:
    """Has the server import modules that are there, and returns at once; its processes compute with as many threads."""
    PROCESSES.set_forkserver_preload([*modules])
    # Where to import from: not from the working directory, which may be anybody's.
    paths = os.pathsep.join(path for path in sys.path if path)
    chosen = {THREADS: str(threads), **ASLEEP, **ACCELERATOR}
    _VARIABLES.clear()
    _VARIABLES.update({**chosen, **os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"})
    # At the end of this process, and after the children of whoever called it.
    util.Finalize(None, _kill_server, exitpriority=-1)
    _ensure_server()


def _ensure_server() -> None:
    """Starts the server, unless it runs."""
    # It would have signals handled again.
    resource_tracker.ensure_running()
    # Those of a terminal reach it, too; a process handles them once it can.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        with _environment(_VARIABLES):
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def how_server_ended() -> str | None:
    """`killed by SIGKILL`, or the like, where it is about to end, or has; None: it runs on."""
    server: Any = forkserver._forkserver
    end_s = time.monotonic() + END_S
    # Its connections close before it has ended. Python asks for its end, too, before it starts another.
    while (end := os.waitid(os.P_PID, server._forkserver_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
        if time.monotonic() > end_s:
            return None
        time.sleep(POLL_S)
    return describe_end(-end.si_status if end.si_code == os.CLD_KILLED else end.si_status)


def describe_end(code: int) -> str:
    """How a process has ended, by its exit code as `multiprocessing` has it."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _kill_server() -> None:
    """It would end by itself, but only after its imports, with this process's output open until then."""
    server: Any = forkserver._forkserver
    pid, server._forkserver_pid = server._forkserver_pid, None
    if pid is not None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            # Another process may have the number of one that was waited for.
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def become_part_of_driver(variables: Mapping[str, str]) -> None:
    """Gives this new process the driver's environment; it ends when the driver does, however that ends."""
    os.environ.clear()
    os.environ.update(variables)
    end_with_parent()


@contextlib.contextmanager
def starting_processes() -> Iterator[None]:
    """A block that starts processes: they do not import the program that this one runs, as they otherwise would.

    Raises:
        WorkerCrashedError: the server was killed meanwhile; the next block starts another.
    """
    _ensure_server()
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise WorkerCrashedError(f"the process that starts the others: {how_server_ended() or error}.") from error
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
