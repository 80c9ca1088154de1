"""Starts processes with everything imported, by forking a server process that has only imported modules.

Uses Python's fork server; programs that call us from `__main__` need no guard. The server's process id, which is needed
to wait for it and to end it, is private in `multiprocessing.forkserver`, and read only here.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker, util
from types import ModuleType
from typing import Any

from trainers.config.parts.scaling_part import ScalingPart
from trainers.distributed.machine import ASLEEP, end_with_parent
from trainers.distributed.signals import SIGNALS

# Ray sets this for its workers, too, unless the user has set it.
THREADS = "OMP_NUM_THREADS"
# Workers compute on CPUs, so DeepSpeed, if imported, does not look for a GPU or warn that there is none.
ACCELERATOR = {"DS_ACCELERATOR": "cpu"}
PROCESSES = multiprocessing.get_context("forkserver")
# The environment of the server, kept for starting it again after it was killed.
_VARIABLES: dict[str, str] = {}


class WorkerCrashedError(Exception):
    """A process ended without a last message, or could not be started since the server had ended."""


def threads_of(scaling: ScalingPart) -> int:
    """Returns the number of threads of a worker, the same as on Ray, so that results are bit for bit equal."""
    return max(1, int(scaling.worker_resources["CPU"]))


def start_server(modules: Sequence[str], threads: int) -> None:
    """Starts a server that imports modules if available, and does not wait. Its processes use `threads` threads."""
    PROCESSES.set_forkserver_preload([*modules])
    # Import paths without the working directory, which other users may be able to write.
    paths = os.pathsep.join(path for path in sys.path if path)
    chosen = {THREADS: str(threads), **ASLEEP, **ACCELERATOR}
    _VARIABLES.clear()
    _VARIABLES.update({**chosen, **os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"})
    # Ends the server when this process ends, after the caller's own child processes.
    util.Finalize(None, _kill_server, exitpriority=-1)
    _ensure_server()


def _ensure_server() -> None:
    """Starts the server unless it is running."""
    # Started first, since starting it would unblock the signals.
    resource_tracker.ensure_running()
    # A terminal sends signals to the server, too; each process unblocks them once it can handle them.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        with _environment(_VARIABLES):
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _kill_server() -> None:
    """Kills the server, which would otherwise keep this process's output open until its imports end."""
    server: Any = forkserver._forkserver
    pid, server._forkserver_pid = server._forkserver_pid, None
    if pid is not None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            # Only if nobody has waited for the server yet; otherwise, another process may have its id.
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def become_part_of_driver(variables: Mapping[str, str]) -> None:
    """Sets the driver's environment in this new process, and ends it when the driver ends, in whatever way."""
    os.environ.clear()
    os.environ.update(variables)
    end_with_parent()


@contextlib.contextmanager
def starting_processes() -> Iterator[None]:
    """Keeps processes that start while the block runs from importing this process's `__main__`.

    Raises:
        WorkerCrashedError: the server was killed meanwhile; the next block starts another one.
    """
    _ensure_server()
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise WorkerCrashedError("the process that starts the others was killed.") from error
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
