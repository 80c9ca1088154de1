"""Makes calls to a bucket from a forked process, which lacks obstore's threads, through a helper process.

Forked processes are torch's data loaders, which read prepared shards.
"""

import os
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from trainers.storage.objects.object_client import Bucket, perform

_HELPERS: "dict[int, Helper]" = {}
_LOCKS: dict[int, threading.Lock] = {}
_PROCESS = os.getpid()


def call(bucket: Bucket, method: str, *arguments: Any) -> Any:
    """Returns the result of a method of ObjectClient, and raises its errors."""
    if not is_forked():
        return perform(bucket, method, arguments)
    process = os.getpid()
    # Keyed by process: a lock copied by a fork may be held by a thread that was not copied.
    with _LOCKS.setdefault(process, threading.Lock()):
        helper = _HELPERS.get(process)
        if helper is None or not helper.lives:
            helper = _HELPERS[process] = Helper()
        return helper.call(bucket, method, arguments)


class Helper:
    """A process that makes calls for this one, and ends with it."""

    def __init__(self) -> None:
        self._connection, remote = Pipe()
        # The helper is not forked either; it must import from the same paths.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", f"from {__name__} import serve; serve({remote.fileno()})"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[remote.fileno()],
            env=environment,
            cwd=Path.cwd(),
            start_new_session=True,
        )
        remote.close()

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def call(self, bucket: Bucket, method: str, arguments: tuple[Any, ...]) -> Any:
        """Returns the result of a call, or raises its exception; raises ConnectionError if the helper has ended."""
        try:
            self._connection.send((bucket, method, arguments))
            succeeded, result = self._connection.recv()
        except EOFError as error:
            raise ConnectionError(f"the process {self._process.pid} that reads buckets for this one ended") from error
        if succeeded:
            return result
        raise result


def serve(descriptor: int) -> None:
    """Makes the calls that arrive at a connection, one after another, until it is closed."""
    connection = Connection(descriptor)
    while True:
        try:
            bucket, method, arguments = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (True, perform(bucket, method, arguments))
        except Exception as error:
            answer = (False, error)
        connection.send(answer)


def is_forked() -> bool:
    """Returns True if the process was forked after it loaded this module, which is loaded with obstore."""
    return os.getpid() != _PROCESS
