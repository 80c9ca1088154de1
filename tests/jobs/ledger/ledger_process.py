"""A service in a process of its own, for tests that stop it: one word a line in, one line of JSON a word out.

python -m tests.jobs.ledger.ledger_process URL HOLDER TTL_S
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.errors import LeaseLostError, ServiceError
from jobs.ledger import Lease, Ledger, database
from tests.jobs.ledger.builders import TIMEOUT_S, make_run

ROOT = Path(__file__).parents[3]


class LedgerProcess:
    """The near end. A deadline kills a process that does not respond."""

    def __init__(self, url: str, holder: str, ttl_s: float):
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, url, holder, str(ttl_s)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def tell(self, word: str) -> None:
        """Says a word without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def receive(self) -> object:
        """Waits for a response."""
        assert self._process.stdout is not None
        timer = threading.Timer(TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        assert line, "the process has ended, or did not respond in time"
        return json.loads(line)

    def call(self, word: str) -> object:
        """Says a word and waits for the answer."""
        self.tell(word)
        return self.receive()

    def signal(self, number: int) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def end(self) -> None:
        """Kills the process, if it lives."""
        self._process.kill()
        self._process.wait(TIMEOUT_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def ledger_process(url: str, holder: str = "a", ttl_s: float = 0.5) -> Iterator[LedgerProcess]:
    """A process that ends with the block."""
    process = LedgerProcess(url, holder, ttl_s)
    try:
        yield process
    finally:
        process.end()


def main() -> None:
    """The far end."""
    url, holder, ttl_s = sys.argv[1:]
    # So that a test need not wait as long as a service would.
    database.WRITER_IDLE_TIMEOUT_S = 1.0
    say("ready")
    sys.stdin.readline()
    ledger = Ledger.open(url)
    say("open")
    lease = ledger.lease(holder, ttl_s=float(ttl_s))
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        try:
            say(obey(ledger, lease, word, rest))
        except (LeaseLostError, ServiceError) as error:
            say(type(error).__name__)


def obey(ledger: Ledger, lease: Lease, word: str, rest: str) -> object:
    """Does what a line says."""
    match word:
        case "hold":
            return lease.try_hold()
        case "epoch":
            return lease.epoch
        case "add":
            return ledger.requests.add_run(make_run(rest), text="").id
        case "write":
            run = ledger.run(rest)
            with ledger.write(lease) as writer:
                run = writer.change(run, cause="written", text=lease.holder, at_s=5.0)
            return run.version
        case "linger":
            run = ledger.run(rest)
            with ledger.write(lease) as writer:
                writer.change(run, cause="lingered", text=lease.holder, at_s=5.0)
                say("inside")
                sys.stdin.readline()
            return "written"
    raise AssertionError(word)


def say(what: object) -> None:
    """Answers."""
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
