"""Writes the page of a running training in a separate process, for which neither a step nor the run's end waits."""

import os
import pickle
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

# Time between a request and its page, so that a validation and the upload of its checkpoint share one page.
PAUSE_S = 10.0
LOWEST_PRIORITY = 19
# Enough for a killed process to end, unless it waits for a disk that does not respond.
LAST_WAIT_S = 5.0


class LivePage:
    """Writes a run's page some seconds after it is requested, one at a time; the first failure is only a warning.

    The first request starts the thread, and the end of the block cancels a page; the caller writes the final page.
    """

    def __init__(self, folder: RunFolder, log: Callable[[str], None]):
        self._folder, self._log = folder, log
        self._wanted, self._ends, self._lock = Event(), Event(), Lock()
        self._process: subprocess.Popen[bytes] | None = None
        # A daemon, so that the process can end while a storage does not respond.
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
        """Writes the page; returns an error message, or ""."""
        # Uses this process's import path, and one thread, since training uses the cores.
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        call = f"from {__name__} import write_page; write_page({LOWEST_PRIORITY})"
        with tempfile.TemporaryFile() as folder, tempfile.TemporaryFile() as errors:
            # Passed in a file, since every user of the machine could read an argument.
            pickle.dump(self._folder, folder)
            folder.seek(0)
            with self._lock:
                if self._ends.is_set():
                    return ""
                # Without pipes, which a data loader that is forked meanwhile would keep open.
                self._process = subprocess.Popen(
                    [sys.executable, "-c", call],
                    stdin=folder,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env={**os.environ, **variables},
                    # Ctrl-C in a terminal is meant for the training.
                    start_new_session=True,
                )
            code = self._process.wait()
            errors.seek(0)
            printed = errors.read().decode(errors="replace").strip().splitlines()
        # A negative code is a signal, which is not reported: it was sent to the training, too, or the kernel sent it,
        # which kills this process before the training.
        return "" if code <= 0 else printed[-1] if printed else f"its process ended with exit code {code}"


def write_page(niceness: int) -> None:
    """Runs in the separate process: writes the page of the run folder that is read from standard input."""
    os.nice(niceness)
    # If memory runs out, Linux should kill this process, not the training.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    # Imported here, since a training worker does not plot.
    from trainers.scoring.report.page import write_report  # noqa: PLC0415

    try:
        write_report(pickle.load(sys.stdin.buffer))
    except RayscribeError as error:
        sys.exit(" ".join(str(error).split()))
