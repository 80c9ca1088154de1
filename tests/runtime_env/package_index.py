"""A private package index on loopback: HTTP basic auth, packages made on the spot, and a diary of who asked.

While it answers a request, it writes down the command lines of all processes: what `ps` would have shown then.
"""

import base64
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LOOPBACK = "127.0.0.1"
YEAR_S = 31_536_000
GATE_DEADLINE_S = 120.0


def open_gate() -> threading.Event:
    """An event that has happened."""
    gate = threading.Event()
    gate.set()
    return gate


@dataclass(frozen=True)
class Request:
    """One request, as the index saw it.

    Attributes:
        method: GET, or HEAD.
        path: What was asked for.
        user: Who asked, by the credentials that came with it. None: none came.
        command_lines: Command lines of all processes at that moment.
    """

    method: str
    path: str
    user: str | None
    command_lines: tuple[str, ...]


@dataclass
class PackageIndex:
    """What the index serves, and what it was asked.

    Attributes:
        user: The one user.
        password: Their password.
        port: Where it listens.
        files: Name of each distribution file → its bytes.
        broken: Answer 503 to everything.
        gate: Nothing is answered while it is closed (cleared).
        requests: All requests so far.
    """

    user: str
    password: str
    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    broken: bool = False
    gate: threading.Event = field(default_factory=open_gate)
    requests: list[Request] = field(default_factory=list)

    def add_wheel(self, name: str, version: str, source: str) -> None:
        """Serves a wheel with one module of the package's name."""
        file_name, content = make_wheel(name, version, source)
        self.files[file_name] = content

    def add_source(self, name: str, version: str, source: str, *, needs: str) -> None:
        """Serves a source distribution that needs a package of this index while it is built."""
        file_name, content = make_source(name, version, source, needs=needs)
        self.files[file_name] = content

    def downloads(self, name: str) -> int:
        """How often a file of a package was fetched whole."""
        fetched = [request.path for request in self.requests if request.method == "GET"]
        return sum(path.startswith(f"/files/{name.replace('-', '_')}-") for path in fetched)

    @property
    def shown(self) -> list[str]:
        """Command lines in which the user's name or password stood while a request was answered."""
        lines = {line for request in self.requests for line in request.command_lines}
        return sorted(line for line in lines if self.user in line or self.password in line)

    def url(self, credentials: str) -> str:
        """Its address, with what stands before the @."""
        return f"http://{credentials}@{LOOPBACK}:{self.port}/simple"

    def answer(self, path: str) -> tuple[bytes, str] | None:
        """Body and type of a page or file."""
        kind, _, name = path.strip("/").partition("/")
        if kind == "files" and name in self.files:
            return self.files[name], "application/octet-stream"
        links = [
            f'<a href="/files/{file}#sha256={hashlib.sha256(content).hexdigest()}">{file}</a>'
            for file, content in self.files.items()
            if file.split("-")[0].replace("_", "-") == name.strip("/")
        ]
        if kind == "simple" and links:
            return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode(), "text/html"
        return None


@contextmanager
def serving(index: PackageIndex) -> Iterator[PackageIndex]:
    """Serves an index as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            user, _, password = credentials_of(self.headers.get("Authorization", "")).partition(":")
            index.requests.append(Request(self.command, self.path, user or None, command_lines()))
            index.gate.wait(GATE_DEADLINE_S)
            if index.broken:
                self.reply(503, b"broken")
            elif (user, password) != (index.user, index.password):
                self.reply(401, b"who are you?")
            elif answer := index.answer(self.path):
                self.reply(200, *answer)
            else:
                self.reply(404, b"no such package")

        def reply(self, code: int, body: bytes, content_type: str = "text/plain") -> None:
            self.send_response(code)
            if code == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="packages"')
            if content_type == "application/octet-stream":
                self.send_header("Cache-Control", f"max-age={YEAR_S}, immutable")
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """The diary says more."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    index.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def credentials_of(header: str) -> str:
    """`user:password` of an Authorization header."""
    scheme, _, value = header.partition(" ")
    return base64.b64decode(value).decode() if scheme.lower() == "basic" else ""


def command_lines() -> tuple[str, ...]:
    """Command lines of all processes of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return tuple(found)


def make_wheel(name: str, version: str, source: str) -> tuple[str, bytes]:
    """Name and bytes of a wheel with one module."""
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        f"{name.replace('-', '_')}.py": source,
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{folder}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{folder}/RECORD"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return f"{name.replace('-', '_')}-{version}-py3-none-any.whl", buffer.getvalue()


# A build backend in the source itself, which imports what the build needs and hands over a wheel that is made already.
BACKEND = """\
import shutil
import {tool}

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    shutil.copy("{wheel}", wheel_directory)
    return "{wheel}"
"""
PYPROJECT = """\
[build-system]
requires = ["{needs}"]
build-backend = "backend"
backend-path = ["."]
"""


def make_source(name: str, version: str, source: str, *, needs: str) -> tuple[str, bytes]:
    """Name and bytes of a source distribution whose backend imports a package of the index."""
    wheel_name, wheel = make_wheel(name, version, source)
    folder = f"{name.replace('-', '_')}-{version}"
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        "pyproject.toml": PYPROJECT.format(needs=needs).encode(),
        "backend.py": BACKEND.format(tool=needs.replace("-", "_"), wheel=wheel_name).encode(),
        wheel_name: wheel,
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(f"{folder}/{path}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return f"{folder}.tar.gz", buffer.getvalue()
