"""The part of Google Cloud Storage's XML API that clients of objects use, over HTTP, in memory.

Each request takes effect at once, as Google promises: of two that create one object, one is told that it is there.
https://cloud.google.com/storage/docs/xml-api/reference-methods
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from time import gmtime, strftime, time
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

LOOPBACK = "127.0.0.1"
MOST_LISTED = 1000


@dataclass(frozen=True)
class Object:
    """The content of an object, its own metadata (`x-goog-meta-…`), its generation and its time."""

    content: bytes
    metadata: Mapping[str, str]
    generation: int
    modified_s: float

    @property
    def headers(self) -> dict[str, str]:
        return {
            "ETag": self.etag,
            "Last-Modified": formatdate(self.modified_s, usegmt=True),
            "x-goog-generation": str(self.generation),
            **self.metadata,
        }

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.content).hexdigest()}"'


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def error(status: int, code: str) -> Answer:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>It is {code}.</Message></Error>"
    return Answer(status, text.encode(), {"Content-Type": "application/xml"})


@dataclass
class GoogleStorageServer:
    """Buckets and what is in them."""

    buckets: dict[str, dict[str, Object]] = field(default_factory=dict)
    _uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def answer(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """What becomes of a request; no other takes effect meanwhile."""
        parts = urlsplit(url)
        bucket, _, name = parts.path.lstrip("/").partition("/")
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if not headers.get("authorization", "").startswith("Bearer "):
            return error(401, "AuthenticationRequired")
        with self._lock:
            objects = self.buckets.get(unquote(bucket))
            if objects is None:
                return error(404, "NoSuchBucket")
            if not name:
                return _listing(objects, query)
            return self._of_object(method, objects, unquote(name), query, headers, body)

    def _of_object(
        self,
        method: str,
        objects: dict[str, Object],
        name: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> Answer:
        if "uploads" in query or "uploadId" in query:
            return self._of_upload(method, objects, name, query, headers, body)
        found = objects.get(name)
        if method == "PUT":
            return self._written(objects, name, headers, body)
        if found is None:
            return error(404, "NoSuchKey")
        if method == "DELETE":
            del objects[name]
            return Answer(204)
        return _content(found, headers.get("range"))

    def _written(self, objects: dict[str, Object], name: str, headers: Mapping[str, str], body: bytes) -> Answer:
        found, wanted = objects.get(name), headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != (found.generation if found is not None else 0):
            return error(412, "PreconditionFailed")
        source = headers.get("x-goog-copy-source")
        if source is None:
            return self._put(objects, name, body, _metadata(headers))
        bucket, _, key = source.lstrip("/").partition("/")
        original = self.buckets.get(unquote(bucket), {}).get(unquote(key))
        if original is None:
            return error(404, "NoSuchKey")
        return self._put(objects, name, original.content, original.metadata)

    def _of_upload(
        self,
        method: str,
        objects: dict[str, Object],
        name: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> Answer:
        if "uploads" in query:
            upload = f"upload-{next(self._numbers)}"
            self._uploads[upload] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return Answer(200, text.encode())
        upload = query["uploadId"]
        if upload not in self._uploads:
            return error(404, "NoSuchUpload")
        if method == "PUT":
            self._uploads[upload][int(query["partNumber"])] = body
            return Answer(200, headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
        sent = self._uploads.pop(upload)
        if method == "DELETE":
            return Answer(204)
        wanted = [
            int(each.text or 0) for each in ElementTree.fromstring(body).iter() if each.tag.endswith("PartNumber")
        ]
        if not set(wanted) <= set(sent):
            return error(400, "InvalidPart")
        made = self._put(objects, name, b"".join(sent[number] for number in sorted(wanted)), _metadata(headers))
        etag = escape(made.headers["ETag"])
        text = f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        return Answer(200, text.encode(), made.headers)

    def _put(self, objects: dict[str, Object], name: str, content: bytes, metadata: Mapping[str, str]) -> Answer:
        objects[name] = Object(content, metadata, next(self._numbers), time())
        return Answer(200, headers=objects[name].headers)


def _metadata(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("x-goog-meta-")}


def _content(found: Object, span: str | None) -> Answer:
    if span is None:
        return Answer(200, found.content, found.headers)
    first, _, last = span.removeprefix("bytes=").partition("-")
    size, start = len(found.content), int(first)
    if start >= size:
        return error(416, "InvalidRange")
    end = min(int(last) if last else size - 1, size - 1)
    headers = {**found.headers, "Content-Range": f"bytes {start}-{end}/{size}"}
    return Answer(206, found.content[start : end + 1], headers)


def _listing(objects: Mapping[str, Object], query: Mapping[str, str]) -> Answer:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = max(query.get("start-after", ""), query.get("continuation-token", ""))
    items: dict[str, str] = {}
    for name in sorted(objects):
        if name <= after or not name.startswith(prefix):
            continue
        head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        if found:
            folder = f"{prefix}{head}{delimiter}"
            items[folder] = f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
        else:
            each = objects[name]
            stamp = strftime("%Y-%m-%dT%H:%M:%S.000Z", gmtime(each.modified_s))
            items[name] = (
                f"<Contents><Key>{escape(name)}</Key><LastModified>{stamp}</LastModified>"
                f"<ETag>{escape(each.etag)}</ETag><Size>{len(each.content)}</Size></Contents>"
            )
    page = [*items][:MOST_LISTED]
    is_more = len(page) < len(items)
    # A folder is passed with all that is in it.
    token = escape(page[-1] + ("\U0010ffff" if page[-1].endswith("/") else "")) if is_more else ""
    text = f"<ListBucketResult><IsTruncated>{str(is_more).lower()}</IsTruncated>{''.join(items[name] for name in page)}"
    text += f"<NextContinuationToken>{token}</NextContinuationToken>" if is_more else ""
    return Answer(200, f"{text}</ListBucketResult>".encode(), {"Content-Type": "application/xml"})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    storage: GoogleStorageServer

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.storage.answer(self.command, self.path, headers, body)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _handle

    def log_message(self, *_: Any) -> None:
        """Says nothing: a test that fails says enough."""


@contextmanager
def google_storage_service(storage: GoogleStorageServer) -> Iterator[str]:
    """The URL of a service that lives as long as the block."""
    server = ThreadingHTTPServer((LOOPBACK, 0), type("Handler", (_Handler,), {"storage": storage}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
