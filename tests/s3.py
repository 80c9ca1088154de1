"""An S3 over HTTP for tests, a bucket in it, and a proxy in front of it that misbehaves when told to.

All three listen on loopback, so other processes can use them too: give them `storage.url()` and
`s3_endpoint` or `fault_proxy.url`; the credentials are in the environment.
"""

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import uuid4

import boto3
import pytest
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

from tests.object_stores import options_of
from trainers.errors import StorageError
from trainers.storage import RetryPolicy, Storage, open_storage

LOOPBACK = "127.0.0.1"
AWS_VARIABLES = {
    "AWS_ACCESS_KEY_ID": "test-key",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
UNWANTED_VARIABLES = (
    "AWS_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_CA_BUNDLE",
)

# What an unreliable service does.
UNRELIABLE: tuple[tuple[Literal["status", "cut", "lose answer"], int], ...] = (
    ("status", 500),
    ("status", 503),
    ("status", 429),
    ("lose answer", 0),
    ("cut", 0),
)
MOST_IN_A_ROW = 3
FAST_RETRY = RetryPolicy(attempts=4, part_attempts=1, first_delay_s=0.01, max_delay_s=0.02)

Matcher = Callable[[str, str], bool]


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The URL of an S3 service that lives as long as the session."""
    with s3_service(LOOPBACK) as url:
        yield url


@contextmanager
def s3_service(
    address: str, port: int = 0, *, seen: Callable[[str, str, int], None] = lambda method, path, status: None
) -> Iterator[str]:
    """The URL of an S3 service that lives as long as the block.

    Args:
        address: Where it listens.
        port: 0: a free one.
        seen: Is called with method, path and status of each request, in the order in which they took effect.
    """
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    application = DomainDispatcherApplication(create_backend_app)
    one_at_a_time = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        # moto looks whether a key exists and then writes it; S3 promises that nothing comes between.
        with one_at_a_time:

            def start(status: str, *rest: Any) -> Any:
                seen(environ["REQUEST_METHOD"], environ["PATH_INFO"], int(status[:3]))
                return start_response(status, *rest)

            return application(environ, start)

    server = make_server(address, port, serve, threaded=True, request_handler=MotoRequestHandler)
    with serving(server):
        yield f"http://{address}:{server.server_port}"


@pytest.fixture
def s3_bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new, empty bucket as `s3://name`, with credentials for it in the environment."""
    for name, value in AWS_VARIABLES.items():
        monkeypatch.setenv(name, value)
    for name in UNWANTED_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    bucket = f"test-{uuid4().hex}"
    boto3.session.Session().client("s3", endpoint_url=s3_endpoint).create_bucket(Bucket=bucket)
    return f"s3://{bucket}"


@pytest.fixture
def bucket_kind() -> str:
    """Which service `fault_proxy` and `shaky_storage` are of; a test with `of_every_bucket` has each."""
    return "s3"


of_every_bucket = pytest.mark.parametrize("bucket_kind", ["s3", "gs", "az"])


@pytest.fixture
def fault_proxy(request: pytest.FixtureRequest, bucket_kind: str) -> Iterator["FaultProxy"]:
    """A proxy in front of a service, without faults at first."""
    proxy = FaultProxy(request.getfixturevalue(f"{bucket_kind}_endpoint"))
    with serving(proxy.server):
        yield proxy
        proxy.stopped.set()


@pytest.fixture(params=["local", "s3", "gs", "az"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty storage of each kind, with a blank in its name; it retries fast."""
    if request.param == "local":
        return open_storage(str(tmp_path / "runs and data"), retry=FAST_RETRY)
    bucket = request.getfixturevalue(f"{request.param}_bucket")
    options = options_of(request.param, request.getfixturevalue(f"{request.param}_endpoint"))
    return open_storage(f"{bucket}/runs and data", options, retry=FAST_RETRY)


@pytest.fixture
def shaky_storage(request: pytest.FixtureRequest, bucket_kind: str, fault_proxy: "FaultProxy") -> Storage:
    """An empty storage behind `fault_proxy`; it retries fast."""
    bucket = request.getfixturevalue(f"{bucket_kind}_bucket")
    return open_storage(f"{bucket}/runs", options_of(bucket_kind, fault_proxy.url), retry=FAST_RETRY)


def fails(call: Callable[[], object]) -> str:
    """The message of the StorageError that `call` must raise."""
    with pytest.raises(StorageError) as caught:
        call()
    return str(caught.value)


@dataclass
class Fault:
    """What the proxy does to the next `count` requests that match."""

    kind: Literal["status", "cut", "lose answer"]
    count: int
    method: str
    matches: Matcher
    status: int = 503
    error_code: str = "SlowDown"


@dataclass
class FaultProxy:
    """An HTTP proxy for one service; threads may change its faults at any time.

    Attributes:
        upstream: The URL of the service.
        delay_put_s: How long each PUT waits before it goes on.
        delays: Which PUTs wait; all unless set.
        requests: (method, path with query) of all requests so far, faulty ones included.
        failed: How many of them by `fail_share`.
        signatures: Header Authorization of each of them; "" where it had none.
    """

    upstream: str
    delay_put_s: float = 0.0
    delays: Matcher = lambda method, path: True
    requests: list[tuple[str, str]] = field(default_factory=list)
    signatures: list[str] = field(default_factory=list)
    failed: int = 0
    _faults: list[Fault] = field(default_factory=list)
    _share: float = 0.0
    _failed: Counter[str] = field(default_factory=Counter)
    _generator: random.Random = field(default_factory=random.Random)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        handler = type("Handler", (_ProxyHandler,), {"proxy": self})
        self.server = ThreadingHTTPServer((LOOPBACK, 0), handler)
        self.stopped = threading.Event()

    @property
    def url(self) -> str:
        """Where clients find the proxy."""
        return f"http://{LOOPBACK}:{self.server.server_port}"

    def fail_next(
        self,
        count: int,
        status: int = 503,
        method: str = "PUT",
        *,
        error_code: str = "SlowDown",
        matches: Matcher = lambda method, path: True,
    ) -> None:
        """The next `count` such requests are answered with `status` and do not reach the service."""
        self._add(Fault("status", count, method, matches, status, error_code))

    def cut_next(self, count: int, method: str = "PUT", *, matches: Matcher = lambda method, path: True) -> None:
        """The next `count` such connections break: a PUT half-sent, a GET half-answered."""
        self._add(Fault("cut", count, method, matches))

    def lose_answer_next(
        self, count: int, method: str = "PUT", *, matches: Matcher = lambda method, path: True
    ) -> None:
        """The next `count` such requests reach the service, but its answer never reaches the client."""
        self._add(Fault("lose answer", count, method, matches))

    def fail_share(self, share: float, *, seed: int) -> None:
        """From now on this share of all requests fails: by a status, by no answer, or by half of one.

        No path more often than MOST_IN_A_ROW: by chance alone, one in ten thousand calls would use up its attempts.
        """
        self._share, self._generator = share, random.Random(seed)

    def clear(self) -> None:
        """No faults from now on."""
        with self._lock:
            self._faults.clear()
            self._share = 0.0
            self.delay_put_s = 0.0

    def take_fault(self, method: str, path: str, signature: str) -> Fault | None:
        """Notes a request and uses up the first fault that is meant for it."""
        with self._lock:
            self.requests.append((method, path))
            self.signatures.append(signature)
            for fault in self._faults:
                if fault.count > 0 and fault.method == method and fault.matches(method, path):
                    fault.count -= 1
                    return fault
            if self._share and self._failed[path] < MOST_IN_A_ROW and self._generator.random() < self._share:
                self._failed[path] += 1
                self.failed += 1
                kind, status = self._generator.choice(UNRELIABLE)
                return Fault(kind, 1, method, lambda method, path: True, status)
            self._failed[path] = 0
        return None

    def _add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)


class _ProxyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def _handle(self) -> None:
        fault = self.proxy.take_fault(self.command, self.path, self.headers.get("Authorization") or "")
        kind = fault.kind if fault else None
        if kind == "cut" and self.command == "PUT":
            self.rfile.read(self._length() // 2)
            return self._break()
        body = self._body()
        if self.command == "PUT" and self.proxy.delay_put_s and self.proxy.delays(self.command, self.path):
            self.proxy.stopped.wait(self.proxy.delay_put_s)
        if fault and kind == "status":
            return self._refuse(fault)
        answer, content = self._forward(body)
        if kind == "lose answer":
            return self._break()
        self._answer(answer, content, half=kind == "cut")
        if kind == "cut":
            self._break()
        return None

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _handle

    def _length(self) -> int:
        return int(self.headers.get("Content-Length") or 0)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(self._length())
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _forward(self, body: bytes) -> tuple[HTTPResponse, bytes]:
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "expect")
        }
        connection = HTTPConnection(urlsplit(self.proxy.upstream).netloc, timeout=60)
        try:
            connection.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def _answer(self, answer: HTTPResponse, content: bytes, *, half: bool) -> None:
        self.send_response(answer.status)
        # A HEAD request's answer tells the length of a body that it does not have.
        told = answer.getheader("Content-Length") if self.command == "HEAD" else None
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "connection", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", told or str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if half else content)

    def _refuse(self, fault: Fault) -> None:
        text = f"<Error><Code>{fault.error_code}</Code><Message>as asked</Message></Error>".encode()
        self.send_response(fault.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _break(self) -> None:
        self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Says nothing: a test that fails says enough."""


@contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """Serves in a thread as long as the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
