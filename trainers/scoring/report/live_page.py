"""The page of a run that trains, made by a process of its own: neither a step nor the run's end depends on it."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self

from trainers.errors import RayscribeError
from trainers.run_folder.layout import RunFolder

# A validation and the upload of its checkpoint are on one page, and a training that ends soon makes none.
PAUSE_S = 10.0
LOWEST_PRIORITY = 19
# For a process that was killed; one that waits for a disk that does not answer ends later.
LAST_WAIT_S = 5.0


class LivePage:
    """Writes a run's page some seconds after it is requested, one at a time; a failure is told once, and harms nothing.

    Whoever ends it writes the page of what the run came to; a page that is being made then is not written.
    """

    def __init__(self, folder: RunFolder, log: Callable[[str], None]):
        """Starts nothing before the first request."""
        self._folder, self._log = folder, log
        self._wanted, self._ends, self._lock = Event(), Event(), Lock()
        self._process: subprocess.Popen[bytes] | None = None
        # A daemon: a process may end while a storage does not answer.
        self._thread = Thread(target=self._write_all, name="live page", daemon=True)
        self._told = False

    def request(self) -> None:
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()
        self._wanted.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._lock:
            self._ends.set()
            if self._process is not None:
                self._process.kill()
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(LAST_WAIT_S)

    def _write_all(self) -> None:
        while True:
            self._wanted.wait()
            if self._ends.wait(PAUSE_S):
                return
            self._wanted.clear()
            try:
                problem = self._write()
            except OSError as error:
                problem = str(error)
            if problem and not (self._told or self._ends.is_set()):
                self._told = True
                again = f"rayscribe report {self._folder.url}"
                self._log(f"warning: the page of the run was not written; training continues: {problem}: try {again}")

    def _write(self) -> str:
        """What went wrong; "" for nothing."""
        # What it imports is found as it is here; and training has the cores.
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        call = f"from {__name__} import write_page; write_page({LOWEST_PRIORITY})"
        with tempfile.TemporaryFile() as folder, tempfile.TemporaryFile() as errors:
            # Not among the arguments, which every user of the machine can read.
            pickle.dump(self._folder, folder)
            folder.seek(0)
            with self._lock:
                if self._ends.is_set():
                    return ""
                # Spawned (close_fds), and without pipes: a loader of batches that is forked meanwhile would keep these
                # open, and have this thread wait for its end.
                self._process = subprocess.Popen(
                    [sys.executable, "-c", call],
                    stdin=folder,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env={**os.environ, **variables},
                    close_fds=False,
                )
            code = self._process.wait()
            errors.seek(0)
            printed = errors.read().decode(errors="replace").strip().splitlines()
        # By a signal: with the training, or by the kernel, which takes it before the training.
        return "" if code <= 0 else printed[-1] if printed else f"its process ended with exit code {code}"


def write_page(niceness: int) -> None:
    """What that process does: writes the page of the run folder that it reads from its input."""
    # A terminal's is meant for the training.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness)
    # Where memory runs out, Linux ends this process, not the training.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    # Imported here: a training worker draws nothing.
    from trainers.scoring.report.page import write_report  # noqa: PLC0415

    try:
        write_report(pickle.load(sys.stdin.buffer))
    except RayscribeError as error:
        sys.exit(" ".join(str(error).split()))
