"""A web server on loopback that gives the files of a folder, complete and in ranges."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.s3 import LOOPBACK, serving

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@contextmanager
def web_server(folder: Path, *, knows_ranges: bool = True) -> Iterator[str]:
    """The URL of a server of a folder's files, as long as the block."""
    attributes = {"folder": folder.resolve(), "knows_ranges": knows_ranges}
    handler = type("Handler", (_Files,), attributes)
    server = ThreadingHTTPServer((LOOPBACK, 0), handler)
    with serving(server):
        yield f"http://{LOOPBACK}:{server.server_port}"


class _Files(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    knows_ranges: bool

    def do_GET(self) -> None:
        path = self.folder / unquote(urlsplit(self.path).path).lstrip("/")
        if not path.is_file():
            return self._answer(404, b"")
        content = path.read_bytes()
        marks = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'}
        asked = _RANGE.fullmatch(self.headers.get("Range", "")) if self.knows_ranges else None
        if asked is None:
            return self._answer(200, content, **marks)
        first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        if first >= len(content):
            return self._answer(416, b"")
        part = content[first : last + 1]
        return self._answer(206, part, **marks, **{"Content-Range": f"bytes {first}-{last}/{len(content)}"})

    def _answer(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Says nothing: a test that fails says enough."""
