"""Serves a folder's files as the objects of a bucket, over HTTP on loopback, in a process of its own.

It knows GET, HEAD and ListObjectsV2 without folders, checks no signature, and keeps connections open, as S3 does. It
costs a tenth of the computing of moto's server, which would take more of this machine than what is measured.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.s3 import LOOPBACK

BUCKET = "bench"
# The object that says how often each other one was read, as JSON.
COUNTS = "counts.json"
KEYS_PER_PAGE = 1000


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

    def __init__(self, folder: Path, counts: Counter[str], listings: "_Listings") -> None:
        self._folder, self._counts, self._listings, self._received = folder, counts, listings, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
            path, query = urlsplit(target).path, dict(parse_qsl(urlsplit(target).query))
            if "list-type" in query:
                self._respond(self._listings.page(query), "application/xml")
            else:
                self._answer(method, unquote(path).removeprefix(f"/{BUCKET}/"))

    def _respond(self, body: bytes, content_type: str, also: str = "", size_bytes: int | None = None) -> None:
        length = len(body) if size_bytes is None else size_bytes
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nContent-Type: {content_type}\r\n{also}\r\n"
        self._transport.write(head.encode() + body)

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
        modified = formatdate(status.st_mtime, usegmt=True)
        also = f"Last-Modified: {modified}\r\nETag: {etag(path)}\r\n"
        self._respond(path.read_bytes() if method == "GET" else b"", "application/octet-stream", also, status.st_size)


class _Listings:
    """Pages of ListObjectsV2; the names of a listing are those of its first page's time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: list[str] = []

    def page(self, query: Mapping[str, str]) -> bytes:
        after, folder = query.get("continuation-token"), self._folder
        if after is None:
            self._names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        after = after or query.get("start-after", "")
        found = [name for name in self._names if name > after and name.startswith(query.get("prefix", ""))]
        page = found[:KEYS_PER_PAGE]
        more = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if len(found) > len(page) else ""
        entries = "".join(_listed(name, folder / name) for name in page)
        is_truncated = "true" if more else "false"
        return f"<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>{more}{entries}</ListBucketResult>".encode()


def _listed(key: str, path: Path) -> str:
    status = path.stat()
    modified = datetime.fromtimestamp(status.st_mtime, UTC).isoformat()
    fields = {"Key": escape(key), "LastModified": modified, "ETag": etag(path), "Size": status.st_size}
    return f"<Contents>{''.join(f'<{name}>{value}</{name}>' for name, value in fields.items())}</Contents>"


def etag(path: Path) -> str:
    """Changes with the file."""
    return f'"{path.stat().st_mtime_ns}"'


async def _serve(folder: Path) -> None:
    counts: Counter[str] = Counter()
    listings = _Listings(folder)
    server = await asyncio.get_running_loop().create_server(lambda: _Objects(folder, counts, listings), LOOPBACK, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
