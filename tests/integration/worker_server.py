"""Forks workers for the Ray of the tests, from a process that has imported what every worker imports.

What those imports read from the environment, a job's own variables no longer change: HF_* and OMP_NUM_THREADS.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Not the project's own packages, which come from the job's working directory; and not Ray, which reads its settings,
# the job's id among them, from the environment when it is imported.
PRELOADED = (
    "accelerate",
    "datasets",
    "evaluate",
    "soundfile",
    "torch",
    "transformers.models.whisper.modeling_whisper",
    "transformers.trainer_seq2seq",
)


@contextmanager
def worker_server(folder: Path) -> Iterator[Path]:
    """A server that ends with the block.

    Args:
        folder: For its socket, whose path may have 107 bytes only.

    Yields:
        The socket.
    """
    address = folder / "workers.sock"
    # One thread for each worker, as Ray sets it for an actor of one CPU; torch reads it when it is imported.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", __file__, str(address)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as server:
        assert server.stdin is not None and server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield address
        server.stdin.close()


def serve(address: str) -> None:
    """Forks a worker for each request until standard input ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    assert "ray" not in sys.modules
    gc.collect()
    gc.freeze()
    # The kernel takes the ended ones away.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            readable, _, _ = select.select([listener, sys.stdin], [], [])
            if listener not in readable:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                break
            connection.close()
    become_worker(connection)


def become_worker(connection: socket.socket) -> None:
    """Turns this process into the worker that a request describes."""
    # Ray ends a worker's whole process group.
    os.setsid()
    parts, output = [], []
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        output += descriptors
        if not data:
            break
        parts.append(data)
    connection.close()
    for standard, descriptor in enumerate(output):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    request: dict[str, Any] = json.loads(b"".join(parts))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for name, value in request["env_vars"].items():
        os.environ[name] = os.path.expandvars(value)
    # Chosen by an import before.
    tempfile.tempdir = None
    sys.argv = request["arguments"]
    inserted = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [str(Path(sys.argv[0]).parent), *filter(None, inserted)]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
