"""What listening sockets answer to calls without a token: HTTP requests and every gRPC method of Ray."""

import http.client
import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
import psutil
import ray.core.generated

TIMEOUT_S = 10
# Requests that would run code: a job at the head and at a node's agent, a runtime environment, a profiler, a kill.
REQUESTS = (
    ("GET", "/"),
    ("POST", "/api/jobs/"),
    ("POST", "/api/job_agent/jobs/"),
    ("POST", "/get_or_create_runtime_env"),
    ("PUT", "/api/packages/gcs/_ray_pkg_0.zip"),
    ("PUT", "/api/serve/applications/"),
    ("GET", "/worker/cpu_profile?pid=1&node_id=x"),
    ("GET", "/api/v0/delay/1"),
)
# What Prometheus's text format begins with.
METRICS = b"# HELP"
# Ray ships no Python module for this service (ray/protobuf/object_manager.proto).
OBJECT_MANAGER = [f"/ray.rpc.ObjectManagerService/{name}" for name in ("Push", "Pull", "FreeObjects")]


@dataclass
class Answers:
    """Of one socket.

    Attributes:
        node: Its node's name.
        address: Where it listens.
        port: TCP.
        process: The command line of who listens.
        http: Status of each request, by method and path; "metrics" where those are the answer. Empty: speaks no HTTP.
        grpc: Names of the methods by status; empty where it speaks no gRPC.
    """

    node: str
    address: str
    port: int
    process: str
    http: dict[str, str] = field(default_factory=dict)
    grpc: dict[str, list[str]] = field(default_factory=dict)


def listening_sockets() -> Iterator[tuple[str, int, str]]:
    """Address, port and process of every socket that listens in this network namespace."""
    found = {}
    for connection in psutil.net_connections("inet"):
        if connection.status == psutil.CONN_LISTEN and connection.pid is not None:
            command = " ".join(psutil.Process(connection.pid).cmdline())
            found[connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port] = command
    yield from ((address, port, command) for (address, port), command in sorted(found.items()))


def answers_of(node: str, own_address: str) -> list[dict[str, Any]]:
    """What every listening socket of this network namespace answers.

    Args:
        node: Name of the node.
        own_address: Where sockets that listen on all addresses are called.
    """
    answers = []
    for address, port, process in listening_sockets():
        host = own_address if address in ("::", "0.0.0.0") else address
        found = Answers(node, address, port, process, http_answers(host, port))
        if not found.http:
            found.grpc = grpc_answers(host, port)
        answers.append(asdict(found))
    return answers


def http_answers(host: str, port: int) -> dict[str, str]:
    """Status of each of REQUESTS."""
    statuses = {}
    for method, path in REQUESTS:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        try:
            body = b'{"entrypoint": "touch /tmp/ray/intruder"}' if method == "POST" else None
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            is_metrics = response.status == http.client.OK and response.read(len(METRICS)) == METRICS
            statuses[f"{method} {path}"] = "metrics" if is_metrics else str(response.status)
        except (http.client.HTTPException, OSError):
            return {}
        finally:
            connection.close()
    return statuses


def grpc_methods() -> list[tuple[str, bool, bool]]:
    """Path of every method of Ray's services, whether its requests are a stream, and its answers."""
    methods = [(name, name.endswith("Push"), False) for name in OBJECT_MANAGER]
    for module in pkgutil.iter_modules(ray.core.generated.__path__):
        if module.name.endswith("_pb2"):
            descriptor = importlib.import_module(f"ray.core.generated.{module.name}").DESCRIPTOR
            for service in descriptor.services_by_name.values():
                methods += [
                    (f"/{service.full_name}/{method.name}", method.client_streaming, method.server_streaming)
                    for method in service.methods
                ]
    return methods


def grpc_answers(host: str, port: int) -> dict[str, list[str]]:
    """Names of the methods by the status of an empty call; nothing where the socket speaks no gRPC."""
    answers: dict[str, list[str]] = {}
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=TIMEOUT_S)
        except grpc.FutureTimeoutError:
            return {}
        for name, requests, responses in grpc_methods():
            answers.setdefault(call(channel, name, requests, responses), []).append(name)
    return answers


def call(channel: grpc.Channel, name: str, requests: bool = False, responses: bool = False, token: str = "") -> str:
    """Status of a call with an empty message."""

    def same(message: bytes) -> bytes:
        return message

    metadata = [("authorization", f"Bearer {token}")] if token else None
    request: Any = iter([b""]) if requests else b""
    kind = f"{'stream' if requests else 'unary'}_{'stream' if responses else 'unary'}"
    method = getattr(channel, kind)(name, same, same)
    try:
        answer = method(request, timeout=TIMEOUT_S, metadata=metadata)
        if responses:
            next(iter(answer), None)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


if __name__ == "__main__":
    print(json.dumps(answers_of(sys.argv[1], sys.argv[2])))
