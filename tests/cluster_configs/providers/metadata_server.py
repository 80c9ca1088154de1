"""A stand-in of the clouds' metadata services over HTTP: one cloud at a time, with the rules of its protocol."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MACHINE = "gpu-7"


class MetadataServer(ThreadingHTTPServer):
    """What a machine asks.

    Attributes:
        cloud: aws, gcp or azure; others than this one's requests are not found.
        answers: By path, what is there; a path that is not named is not found.
        token: The only AWS token that is valid.
        asked: Method and path of each request.
    """

    daemon_threads = True

    def __init__(self, cloud: str, host: str = "127.0.0.1"):
        """Listens on a free port; nothing is announced."""
        super().__init__((host, 0), _Handler)
        self.cloud, self.token, self.asked = cloud, "first", list[str]()
        self.answers: dict[str, str] = {
            "aws": {"/latest/meta-data/instance-id": "i-0123"},
            "gcp": {
                "/computeMetadata/v1/": "instance/",
                "/computeMetadata/v1/instance/preempted": "FALSE",
                "/computeMetadata/v1/instance/maintenance-event": "NONE",
            },
            "azure": {
                "/metadata/instance/compute/name?api-version=2021-02-01&format=text": MACHINE,
                "/metadata/scheduledevents?api-version=2020-07-01": '{"DocumentIncarnation": 1, "Events": []}',
            },
        }[cloud]

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.server_address[0]!s}:{self.server_port}"

    def announce(self, time: str = "2026-11-22T08:22:00Z") -> None:
        """Says that the machine is taken away."""
        if self.cloud == "aws":
            self.answers["/latest/meta-data/spot/instance-action"] = json.dumps({"action": "terminate", "time": time})
        elif self.cloud == "gcp":
            self.answers["/computeMetadata/v1/instance/preempted"] = "TRUE"
        else:
            self.events({"EventType": "Preempt", "Resources": ["gpu-1", MACHINE], "NotBefore": ""})

    def events(self, *events: dict[str, Any]) -> None:
        """Azure's scheduled events."""
        self.answers["/metadata/scheduledevents?api-version=2020-07-01"] = json.dumps({"Events": events})


class _Handler(BaseHTTPRequestHandler):
    server: MetadataServer

    def do_PUT(self) -> None:
        """Issues a token."""
        has_ttl = 0 < int(self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "0")) <= 21600
        if self.server.cloud == "aws" and self.path == "/latest/api/token":
            self._respond(200 if has_ttl else 400, self.server.token)
        else:
            self._respond(405, "")

    def do_GET(self) -> None:
        """Answers as the cloud does."""
        refusal = {
            "aws": 401 if self.headers.get("X-aws-ec2-metadata-token") != self.server.token else 0,
            "gcp": 403 if self.headers.get("Metadata-Flavor") != "Google" else 0,
            "azure": 400 if self.headers.get("Metadata") != "true" or "api-version=" not in self.path else 0,
        }[self.server.cloud]
        found = self.server.answers.get(self.path)
        self._respond(refusal or (404 if found is None else 200), found or "")

    def _respond(self, status: int, body: str) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        self.send_response(status)
        if self.server.cloud == "gcp":
            self.send_header("Metadata-Flavor", "Google")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps the output of tests clean."""


@contextmanager
def metadata_server(cloud: str, host: str = "127.0.0.1") -> Iterator[MetadataServer]:
    """A stand-in that listens while the block runs."""
    with MetadataServer(cloud, host) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
