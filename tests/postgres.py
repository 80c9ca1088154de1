"""A real PostgreSQL for tests: a server of its own in a temporary folder, on a loopback port, as long as the session.

It is the one that `make setup` installs, and can be stopped and started again at the same port. PostgreSQL refuses to
run as root; there it runs as `nobody`, from a copy that this user can read.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.settings import NODE_PACKAGES

LOOPBACK = "127.0.0.1"
USER = "rayscribe"
UNPRIVILEGED_USER = "nobody"
MISSING = "PostgreSQL is not installed, and the ledger is tested on a real one: make setup"
START_DEADLINE_S = 60.0
# Nothing of a test needs to survive a loss of power.
SETTINGS = {"fsync": "off", "listen_addresses": LOOPBACK, "unix_socket_directories": "", "max_connections": "200"}


@dataclass
class PostgresServer:
    """A server and its folder.

    Attributes:
        binaries: Folder of `postgres` and `initdb`.
        folder: Its data, and its log.
        port: On loopback.
    """

    binaries: Path
    folder: Path
    port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def url(self, database: str = "postgres") -> str:
        """Where clients find one of its databases; no password is asked for on loopback."""
        return f"postgresql://{USER}@{LOOPBACK}:{self.port}/{database}"

    def create_schema(self) -> str:
        """Makes an empty schema and returns a URL in which it stands for the whole database.

        A database for each test would cost 7 MB and a third of a second.
        """
        name = f"test_{uuid4().hex}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{self.url()}?options=-csearch_path%3D{name}"

    def initialize(self) -> None:
        """Makes the files of a cluster of databases."""
        # From PostgreSQL 15 on: an order other than code points', as most servers have.
        order = ["--locale-provider=icu", "--icu-locale=en-US"] if "--icu-locale" in self._initdb("--help") else []
        where = ["-D", str(self._data), "-U", USER, "-E", "UTF8"]
        self._initdb(*where, "--locale=C", *order, "--auth=trust", "--no-sync")

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        assert self._process is None
        self.port = self.port or _free_port()
        options = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        command = [str(self.binaries / "postgres"), "-D", str(self._data), "-p", str(self.port), *options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, **self._as_whom())
        end = time.monotonic() + START_DEADLINE_S
        while not self._answers():
            alive = self._process.poll() is None
            if not alive or time.monotonic() > end:
                self.stop(for_good=True)
                pytest.fail(f"PostgreSQL did not start:\n{self._log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.05)

    def stop(self, *, for_good: bool = False) -> None:
        """Stops the server, cutting its clients off; for good, it tidies nothing up."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            # PostgreSQL's "immediate" and "fast" shutdown.
            process.send_signal(signal.SIGQUIT if for_good else signal.SIGINT)
        process.wait(START_DEADLINE_S)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _initdb(self, *options: str) -> str:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [str(self.binaries / "initdb"), *options],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=START_DEADLINE_S,
            check=False,
            **self._as_whom(),
        )
        assert done.returncode == 0, f"initdb failed:\n{done.stdout}{done.stderr}"
        return done.stdout

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    @staticmethod
    def _as_whom() -> dict[str, Any]:
        if os.geteuid() != 0:
            return {}
        user = pwd.getpwnam(UNPRIVILEGED_USER)
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A server for the length of the block; fails where PostgreSQL is not installed."""
    installed = next(NODE_PACKAGES.glob("@embedded-postgres/*/native"), None)
    if installed is None:
        pytest.fail(MISSING, pytrace=False)
    # Not below pytest's own temporary folder, which only its owner may enter.
    folder = Path(tempfile.mkdtemp(prefix="rayscribe-postgres-"))
    try:
        if os.geteuid() == 0:
            installed = shutil.copytree(installed, folder / "postgres", symlinks=True)
            shutil.chown(folder, pwd.getpwnam(UNPRIVILEGED_USER).pw_uid)
        server = PostgresServer(installed / "bin", folder)
        server.initialize()
        server.start()
        try:
            yield server
        finally:
            server.stop(for_good=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server that lives as long as the session; who stops it starts it again."""
    with running_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of what looks like a new, empty database."""
    return postgres_server.create_schema()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
