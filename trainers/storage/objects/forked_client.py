"""Calls to a bucket from a forked process, which has none of obstore's threads: another process makes them for it.

That is one of torch's loaders of batches, which read prepared shards.
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
    """What a method of ObjectClient gives; raises what it raises."""
    if not is_forked():
        return perform(bucket, method, arguments)
    process = os.getpid()
    # Keyed by process: a lock that was copied by a fork may be held by a thread that was not.
    with _LOCKS.setdefault(process, threading.Lock()):
        helper = _HELPERS.get(process)
        if helper is None or not helper.lives:
            helper = _HELPERS[process] = Helper()
        return helper.call(bucket, method, arguments)


class Helper:
    """A process that makes calls for this one, and ends with it."""

    def __init__(self) -> None:
        self._connection, remote = Pipe()
        # It is not forked either: what it imports is found as it is here.
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
        """The result of a call, or its exception; ConnectionError where the process has ended."""
        try:
            self._connection.send((bucket, method, arguments))
            succeeded, result = self._connection.recv()
        except EOFError as error:
            raise ConnectionError(f"the process {self._process.pid} that reads buckets for this one ended") from error
        if succeeded:
            return result
        raise result


def serve(descriptor: int) -> None:
    """Makes the calls that come by a connection, one after the other, until it is closed."""
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
    """Whether the process was forked from one that has loaded this module, as all that load obstore do."""
    return os.getpid() != _PROCESS
