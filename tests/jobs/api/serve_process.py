"""A service in a process of its own, as `rayscribe serve` runs it, for tests that end it.

python -m tests.jobs.api.serve_process DATABASE PORT [NAME=VALUE …]
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from jobs.api.server.process import ServeSettings, serve
from tests.jobs.ledger.builders import TIMEOUT_S

ROOT = Path(__file__).parents[3]
# No server responds there.
NO_CLUSTER = "http://127.0.0.1:9"


class ServeProcess:
    """The near end.

    Attributes:
        lines: What it has said on standard output.
        log: Where its standard error goes.
    """

    def __init__(self, home: Path, database: str, **settings: object):
        self.log = home / f"serve-{len(list(home.glob('serve-*')))}.log"
        given = json.dumps({"port": 0, "addresses": [NO_CLUSTER], "lease_s": 2.0, "poll_s": 0.1, **settings})
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, database, given],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "RAYSCRIBE_HOME": str(home), "PYTHONUNBUFFERED": "1"},
            )
        self.lines: list[str] = []

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def url(self) -> str:
        """Where it serves, once it has said so."""
        while not self.lines or not self.lines[-1].startswith("Rayscribe serves"):
            line = self._read()
            assert line, f"the service has ended:\n{self.log.read_text()[-4000:]}"
            self.lines.append(line.rstrip("\n"))
        return next(word for word in self.lines[-1].split() if word.startswith("http://"))

    def signal(self, number: int) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Waits for the end; returns the exit code."""
        return self._process.wait(TIMEOUT_S)

    def end(self) -> int:
        """Ends it as a system would."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Kills it, if it lives."""
        self._process.kill()
        self._process.wait(TIMEOUT_S)
        self._stdout.close()

    @property
    def _stdout(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _read(self) -> str:
        timer = threading.Timer(TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            return self._stdout.readline()
        finally:
            timer.cancel()


@contextmanager
def serve_process(home: Path, database: str, **settings: object) -> Iterator[ServeProcess]:
    """A service that ends with the block."""
    process = ServeProcess(home, database, **settings)
    try:
        yield process
    finally:
        process.kill()


def main(database: str, given: str) -> None:
    """The far end."""
    settings = json.loads(given)
    settings["addresses"] = tuple(settings["addresses"])
    for name in ("queues_file", "packages"):
        if name in settings:
            settings[name] = Path(settings[name])
    serve(ServeSettings(database=database, **settings))


if __name__ == "__main__":
    main(*sys.argv[1:])
