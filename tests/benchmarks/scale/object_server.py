"""Serves a folder's files as the objects of a bucket, over HTTP on loopback, in a process of its own.

It knows GET and HEAD, checks no signature, and keeps connections open, as S3 does. It costs a tenth of the computing of
moto's server, which would take more of this machine than what is measured.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.s3 import LOOPBACK

BUCKET = "bench"
# The object that says how often each other one was read, as JSON.
COUNTS = "counts.json"


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serves `folder` as the bucket BUCKET while the block runs; gives the endpoint."""
    command = [sys.executable, "-m", "tests.benchmarks.scale.object_server", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://{LOOPBACK}:{int(process.stdout.readline())}"
        finally:
            process.terminate()


class _Objects(asyncio.Protocol):
    """One connection; requests without a body come one after the other."""

    def __init__(self, folder: Path, counts: Counter[str]) -> None:
        self._folder, self._counts, self._received = folder, counts, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
            self._answer(method, unquote(urlsplit(target).path).removeprefix(f"/{BUCKET}/"))

    def _answer(self, method: str, key: str) -> None:
        if key == COUNTS:
            (self._folder / key).write_text(json.dumps(self._counts))
        elif method == "GET":
            self._counts[key] += 1
        path = self._folder / key
        if not path.is_file():
            self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        status = path.stat()
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Length: {status.st_size}\r\nContent-Type: application/octet-stream\r\n"
            f'Last-Modified: {formatdate(status.st_mtime, usegmt=True)}\r\nETag: "{status.st_mtime_ns}"\r\n\r\n'
        )
        self._transport.write(head.encode() + (path.read_bytes() if method == "GET" else b""))


async def _serve(folder: Path) -> None:
    counts: Counter[str] = Counter()
    server = await asyncio.get_running_loop().create_server(lambda: _Objects(folder, counts), LOOPBACK, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
