"""A web server on loopback for tests, with TLS or without, that misbehaves when told to; and a Hub that it serves."""

import datetime
import hashlib
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LOOPBACK = "127.0.0.1"
HOLD_S = 60.0


@dataclass
class Page:
    """What a path gives.

    Attributes:
        headers: Sent as they are.
        claimed_bytes: The length that is claimed; None: none is, and the connection ends behind the content.
        ranges: Whether a part may be asked for.
        cuts: After how many bytes the next responses break off, one after the other.
        statuses: What the next requests are answered with instead.
        released: The content is held back until it is set.
    """

    content: bytes
    headers: dict[str, str] = field(default_factory=dict)
    claimed_bytes: int | None = -1
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    released: threading.Event | None = None


@dataclass
class WebServer:
    """Attributes:
    requests: Method, path and Range of each request so far.
    """

    url: str
    pages: dict[str, Page] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def publish(self, path: str, content: bytes, **changes: Any) -> str:
        """Serves content with its ETag; gives the URL."""
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        self.pages[path] = Page(content, **{"headers": {"ETag": etag}, **changes})
        return f"{self.url}{path}"

    def gets(self, path: str) -> list[str | None]:
        """Range of each GET of a path."""
        return [asked for method, of, asked in self.requests if (method, of) == ("GET", path)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: WebServer

    def do_GET(self) -> None:
        """Serves a page, or what it has in place of it."""
        path = self.path.partition("?")[0]
        self.web.requests.append((self.command, path, self.headers.get("Range")))
        page = self.web.pages.get(path)
        if page is None or page.statuses:
            self._respond(page.statuses.pop(0) if page is not None else 404, {"Content-Length": "0"})
            return
        start, total = self._start(page), len(page.content)
        headers = dict(page.headers)
        status = 200
        if start:
            status, headers["Content-Range"] = 206, f"bytes {start}-{total - 1}/{total}"
        if page.claimed_bytes is not None:
            headers["Content-Length"] = str((total if page.claimed_bytes < 0 else page.claimed_bytes) - start)
        else:
            headers["Connection"] = "close"
        self._respond(int(headers.pop("Status", status)), headers)
        if self.command == "HEAD":
            return
        if page.released is not None:
            page.released.wait(HOLD_S)
        cut = page.cuts.pop(0) if page.cuts else None
        # Who has read enough of the headers may hang up.
        with suppress(OSError):
            self.wfile.write(page.content[start : None if cut is None else start + cut])
        if cut is not None or page.claimed_bytes is None or page.claimed_bytes >= 0:
            self.close_connection = True

    do_HEAD = do_GET

    def _start(self, page: Page) -> int:
        asked, validator = self.headers.get("Range"), self.headers.get("If-Range")
        changed = validator not in (None, page.headers.get("ETag"), page.headers.get("Last-Modified"))
        if asked is None or not page.ranges or changed:
            return 0
        return int(asked.removeprefix("bytes=").partition("-")[0])

    def _respond(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls") / "loopback.pem")


@pytest.fixture
def web(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["WebServer"]:
    """A server over TLS, whose certificate this process, and those that it starts, trust."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(certificate) as server:
        yield server


@contextmanager
def serving(certificate: Path | None = None) -> Iterator[WebServer]:
    """A server that lives as long as the block; with a certificate and its key in one file, over TLS."""
    server = ThreadingHTTPServer((LOOPBACK, 0), _Handler)
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    web = WebServer(f"{scheme}://{LOOPBACK}:{server.server_address[1]}")
    server.RequestHandlerClass = type("Handler", (_Handler,), {"web": web})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_certificate(path: Path) -> Path:
    """Writes a certificate for loopback that signs itself, and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, LOOPBACK)])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
    return path


def publish_repository(web: WebServer, name: str, folder: Path, revision: str = "main") -> str:
    """Serves a folder's files as a repository of the Hub, as huggingface_hub asks for them; gives its commit."""
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
    digest = hashlib.sha1(usedforsecurity=False)
    for file, content in files.items():
        digest.update(file.encode() + content)
    commit = digest.hexdigest()
    info = {"id": name, "sha": commit, "siblings": [{"rfilename": file} for file in files]}
    blobs = {file: hashlib.sha1(content, usedforsecurity=False).hexdigest() for file, content in files.items()}
    tree = [{"type": "file", "path": file, "size": len(files[file]), "oid": blobs[file]} for file in files]
    kind = {"Content-Type": "application/json"}
    for each in (revision, commit):
        web.publish(f"/api/models/{name}/revision/{each}", json.dumps(info).encode(), headers=kind)
        web.publish(f"/api/models/{name}/tree/{each}", json.dumps(tree).encode(), headers=kind)
        for file, content in files.items():
            headers = {"ETag": f'"{blobs[file]}"', "X-Repo-Commit": commit}
            web.publish(f"/{name}/resolve/{each}/{file}", content, headers=headers)
    if revision == "main":
        web.publish(f"/api/models/{name}", json.dumps(info).encode(), headers=kind)
    return commit
