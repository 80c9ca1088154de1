"""A Hub on loopback that takes models, as huggingface_hub pushes them over LFS, and that misbehaves when told to."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import huggingface_hub.constants
import pytest
import yaml
from huggingface_hub.utils._http import http_backoff

from tests.s3 import serving
from tests.web import LOOPBACK
from trainers.storage import RetryPolicy, hub_errors

TOKEN, READING = "hf_" + "w" * 34, "hf_" + "r" * 34
LAB = {"name": "lab", "roleInOrg": "write"}
ACCOUNTS = {
    TOKEN: {"name": "ana", "orgs": [LAB], "auth": {"accessToken": {"role": "write"}}},
    READING: {"name": "ana", "orgs": [LAB], "auth": {"accessToken": {"role": "read"}}},
}
OWNERS = ("ana", "lab")
# Weights are in LFS, as is what is larger than this.
REGULAR_BYTES = 2000
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass
class Repository:
    """A repository: its files, and what was committed, with the newest last."""

    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=lambda: ["0" * 40])
    private: bool = False


@dataclass
class Fault:
    """What happens to the next requests to a path that a pattern finds.

    Attributes:
        status: They are answered with it. None: the connection ends, in the middle of what they send.
        times: How many.
        lost: They are done, and then the connection ends without an answer.
    """

    pattern: str
    status: int | None = None
    times: int = 1
    lost: bool = False


@dataclass
class Hub:
    """Attributes:
    blobs: Content in LFS, by SHA-256.
    requests: Method and path of each so far.
    """

    url: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def sent(self) -> list[str]:
        """SHA-256 of each content that was sent to LFS, or begun to be."""
        return [request.rpartition("/")[2] for request in self.requests if request.startswith("PUT ")]

    def fault_of(self, request: str) -> Fault | None:
        """The fault of this request, which is used up."""
        with self.lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.times and re.search(fault.pattern, request):
                    fault.times -= 1
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body of an answer are sent one after the other.
    disable_nagle_algorithm = True
    hub: Hub

    def do_POST(self) -> None:
        path = unquote(self.path.partition("?")[0])
        fault = self.hub.fault_of(f"{self.command} {path}")
        if fault is not None and fault.status is None and not fault.lost:
            self.rfile.read(int(self.headers.get("Content-Length", 0)) // 2)
            self.close_connection = True
            return
        body = self._body()
        if fault is not None and fault.status is not None:
            said = {"error": f"not with {self.headers.get('Authorization')}"}
            # What stands before a Hub that is down has pages for people.
            self._answer(fault.status, json.dumps(said).encode() if fault.status < 500 else b"<html>not now</html>")
            return
        status, content = self._respond(path, body)
        if fault is not None:
            self.close_connection = True
            return
        headers = {"X-Error-Code": "RepoNotFound"} if status == 404 else {}
        self._answer(status, json.dumps(content).encode(), headers)

    do_GET = do_PUT = do_POST

    def log_message(self, *_: object) -> None:
        """Logs nothing."""

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _respond(self, path: str, body: bytes) -> tuple[int, Any]:
        if path.startswith("/lfs/"):
            sha256 = path.rpartition("/")[2]
            assert hashlib.sha256(body).hexdigest() == sha256
            self.hub.blobs[sha256] = body
            return 200, {}
        account: Any = ACCOUNTS.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
        if account is None:
            return 401, {"error": "Invalid credentials in Authorization header"}
        if path == "/api/whoami-v2":
            return 200, account
        if path == "/api/validate-yaml":
            errors = [{"message": text} for text in problems_of(json.loads(body)["content"])]
            return (400 if errors else 200), {"errors": errors, "warnings": []}
        if path == "/api/repos/create":
            return self._create(json.loads(body), account)
        found = re.fullmatch(r"(?:/api/models)?/([^/]+/[^/.]+)(?:\.git/info)?/?(.*)", path)
        assert found is not None, path
        return self._of_repository(found[1], found[2], body, account)

    def _create(self, wanted: dict[str, Any], account: Any) -> tuple[int, Any]:
        name = f"{wanted['organization'] or account['name']}/{wanted['name']}"
        if not may_write(account, name):
            return 403, {"error": f"You don't have the rights to create a model under {name}"}
        if name in self.hub.repositories:
            return 409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"}
        self.hub.repositories[name] = Repository(private=wanted.get("visibility") == "private")
        return 200, {"url": f"{self.hub.url}/{name}"}

    def _of_repository(self, name: str, what: str, body: bytes, account: Any) -> tuple[int, Any]:
        repository = self.hub.repositories.get(name)
        if repository is None:
            return 404, {"error": "Repository not found"}
        reads: dict[str, Callable[[], Any]] = dict.fromkeys(
            ("", "revision/main"), lambda: {"id": name, "sha": repository.commits[-1], "siblings": []}
        )
        reads["tree/main"] = lambda: [
            {"type": "file", "path": file, "size": len(content), "oid": ""}
            for file, content in repository.files.items()
        ]
        writes: dict[str, Callable[[], Any]] = {
            "auth-check/write": dict,
            "preupload/main": lambda: {"files": [_upload_mode(repository, item) for item in json.loads(body)["files"]]},
            "lfs/objects/batch": lambda: {"objects": [self._lfs_object(item) for item in json.loads(body)["objects"]]},
            "commit/main": lambda: self._commit(name, [json.loads(line) for line in body.splitlines()]),
        }
        if what in reads:
            return 200, reads[what]()
        return (200, writes[what]()) if may_write(account, name) else (403, {"error": "Forbidden: pass a write token"})

    def _lfs_object(self, item: Any) -> dict[str, Any]:
        upload = {"upload": {"href": f"{self.hub.url}/lfs/{item['oid']}"}}
        return {**item, **({} if item["oid"] in self.hub.blobs else {"actions": upload})}

    def _commit(self, name: str, operations: list[Any]) -> dict[str, Any]:
        repository = self.hub.repositories[name]
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                repository.files[value["path"]] = self.hub.blobs[value["oid"]]
            elif operation["key"] == "deletedFile":
                del repository.files[value["path"]]
            else:
                assert operation["key"] == "header"
        digest = hashlib.sha1(json.dumps(operations).encode(), usedforsecurity=False).hexdigest()
        repository.commits.append(digest)
        return {"commitUrl": f"{self.hub.url}/{name}/commit/{digest}", "commitOid": digest}


def may_write(account: Any, name: str) -> bool:
    return name.partition("/")[0] in OWNERS and account["auth"]["accessToken"]["role"] == "write"


def _upload_mode(repository: Repository, item: Any) -> dict[str, Any]:
    is_large = item["path"].endswith(".safetensors") or item["size"] > REGULAR_BYTES
    content, known = repository.files.get(item["path"]), None
    if content is not None:
        blob = b"blob %d\0" % len(content) + content
        known = hashlib.sha256(content) if is_large else hashlib.sha1(blob, usedforsecurity=False)
    oid = known.hexdigest() if known is not None else None
    return {"path": item["path"], "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False, "oid": oid}


def problems_of(card: str) -> list[str]:
    """What the Hub refuses of a card's metadata."""
    content = yaml.safe_load(card.split("---")[1])
    languages = content.get("language", [])
    found = [
        f'"language" with value "{code}" is not valid'
        for code in ([languages] if isinstance(languages, str) else languages)
        if not re.fullmatch("[a-z]{2,3}", code)
    ]
    named = [*filter(None, [content.get("base_model")]), *content.get("datasets", [])]
    found += [f'"{name}" is not the id of a repository' for name in named if not _HUB_ID.fullmatch(name)]
    for result in content["model-index"][0]["results"] if "model-index" in content else []:
        wanted = [result["task"]["type"], result["dataset"]["type"], result["dataset"]["name"]]
        wanted += [metric["type"] for metric in result["metrics"]]
        found += ["model-index is not valid" for text in wanted if not isinstance(text, str) or not text]
        found += ["a metric has no value" for metric in result["metrics"] if not isinstance(metric["value"], float)]
    return found


@contextmanager
def serving_hub() -> Iterator[Hub]:
    """A Hub that lives as long as the block."""
    server = ThreadingHTTPServer((LOOPBACK, 0), _Handler)
    hub = Hub(f"http://{LOOPBACK}:{server.server_address[1]}")
    server.RequestHandlerClass = type("Handler", (_Handler,), {"hub": hub})
    with serving(server):
        yield hub


@pytest.fixture
def taking_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub that huggingface_hub in this process pushes to, with a token that may write, and tries again at once."""
    with serving_hub() as hub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        # Its chunks are for a server of its own.
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        defaults = http_backoff.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "base_wait_time", 0.0)
        monkeypatch.setattr(hub_errors, "HUB_RETRIES", RetryPolicy(attempts=2, first_delay_s=0.0))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub
