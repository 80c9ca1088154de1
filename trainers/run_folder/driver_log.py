"""Writes the output of a driver without a queue to the run folder; for other runs, the service keeps the job's log."""

import os
import threading
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

from trainers.config.secrets import secret_lines
from trainers.distributed.console import listened
from trainers.errors import StorageError
from trainers.run_folder.attempt_status import driver_log_key
from trainers.run_folder.layout import RunFolder

WRITE_S = 3.0
# Limit for one attempt; a day of training prints a tenth of this. The file is rewritten each time, since buckets cannot
# append.
MAX_CHARACTERS = 1 << 20
MASK = "***"


class DriverLog:
    """Writes the lines that are shown while the block runs, every few seconds, once the attempt has a number.

    Errors of writing the log do not affect the run.
    """

    def __init__(self, folder: RunFolder):
        self._folder, self._secrets = folder, secret_lines(os.environ)
        self._attempt: int | None = None
        self._lines: list[str] = []
        self._written = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._write_loop, name="driver-log", daemon=True)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(listened(self._lines.append))
        return self

    def add(self, line: str) -> None:
        """Adds a line that is not shown on the console."""
        self._lines.append(line)

    def begin(self, attempt: int) -> None:
        """Sets the attempt, and starts writing."""
        self._attempt = attempt
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        if self._attempt is None:
            return
        if error is not None:
            self._lines.append(f"{type(error).__name__}: {error}")
        self._closed.set()
        self._thread.join(WRITE_S)

    def _write_loop(self) -> None:
        while not self._closed.wait(WRITE_S):
            self._write()
        self._write()

    def _write(self) -> None:
        assert self._attempt is not None
        # The text only grows, so that a reader can continue at its offset; text beyond the limit is dropped.
        text = "".join(f"{line}\n" for line in self._lines[:])[:MAX_CHARACTERS]
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        if len(text) > self._written:
            with suppress(StorageError):
                self._folder.storage.write_bytes(driver_log_key(self._attempt), text.encode())
                self._written = len(text)
