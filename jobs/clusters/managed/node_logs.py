"""Copies the logs of all nodes of a cluster through its dashboard, before the nodes end."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import requests
from ray.exceptions import RayError
from ray.util.state.common import StateResource
from ray.util.state.exception import RayStateApiException

from jobs.addresses import direct
from jobs.clusters.managed.cluster_endpoint import ClusterEndpoint
from jobs.clusters.ray_private import RESPONSE_TIMEOUT_S, StateClient
from jobs.errors import ClusterError

LOGS = "/api/v0/logs"
# Longest wait for logs when a cluster is ended. Seconds.
ARCHIVE_TIMEOUT_S = 300.0
CHUNK_BYTES = 1 << 20
UNREACHABLE = (requests.RequestException, RayStateApiException, RayError, ConnectionError, RuntimeError)


def archive_logs(
    endpoint: ClusterEndpoint, folder: Path, say: Callable[[str], None], *, timeout_s: float = ARCHIVE_TIMEOUT_S
) -> int:
    """Copies every log of every living node to `folder`/<address of the node>/<file>, for at most `timeout_s`.

    Returns the number of copied files; reports to `say` what was not copied, and why.

    Raises:
        ClusterError: the dashboard does not respond, so that none was copied.
    """
    end = time.monotonic() + timeout_s
    copied = 0
    missed: list[str] = []
    for node, address, name in _files(endpoint, missed, end):
        if time.monotonic() > end:
            missed.append(f"{address}: {name} and what follows: not within {timeout_s:.0f} s")
            break
        target = target_of(folder, address, name)
        if target is None:
            missed.append(f"{address}: {name}: not a file of the log folder")
            continue
        try:
            _copy(endpoint, node, name, target, end)
        except (*UNREACHABLE, OSError, TimeoutError) as error:
            missed.append(f"{address}: {name}: {_line(error)}")
        else:
            copied += 1
    lines = [line if line.isprintable() else ascii(line) for line in missed]
    for line in lines[:5]:
        say(f"not archived: {line}")
    if lines:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "MISSED.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return copied


def target_of(folder: Path, address: str, name: str) -> Path | None:
    """Returns the path of a node's log; None if it would be outside `folder`, or has unprintable characters.

    Address and name come from the cluster, whose jobs may set them to anything.
    """
    parts = (address, *PurePosixPath(name.lstrip("/")).parts)
    plain = "/" not in address and len(parts) > 1 and all(part.isprintable() for part in parts)
    if not plain or not {"", ".", ".."}.isdisjoint(parts):
        return None
    target = folder.joinpath(*parts)
    return target if target.resolve().is_relative_to(folder.resolve()) else None


def _files(endpoint: ClusterEndpoint, missed: list[str], end: float) -> Iterator[tuple[str, str, str]]:
    """Yields the node id, node address and name of each log."""
    try:
        nodes = StateClient(endpoint.url, endpoint.headers).all(StateResource.NODES)
    except UNREACHABLE as error:
        raise ClusterError(f"the logs of its nodes cannot be listed: {_line(error)}") from error
    for node in nodes:
        if node.state != "ALIVE":
            continue
        if time.monotonic() > end:
            missed.append(f"{node.node_ip} and what follows: all: no time was left")
            return
        try:
            listed = _get(endpoint, LOGS, {"node_id": node.node_id}).json()["data"]["result"]
            names = sorted({name for group in listed.values() for name in group if not name.endswith("/")})
        except (*UNREACHABLE, KeyError, ValueError, TypeError, AttributeError) as error:
            missed.append(f"{node.node_ip}: all: {_line(error)}")
            continue
        yield from ((node.node_id, f"{node.node_ip}-{node.node_id[:8]}", name) for name in names)


def _copy(endpoint: ClusterEndpoint, node: str, name: str, target: Path, end: float) -> None:
    response = _get(endpoint, f"{LOGS}/file", {"node_id": node, "filename": name, "lines": -1}, stream=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with response, target.open("xb") as file:
        for chunk in response.iter_content(CHUNK_BYTES):
            file.write(chunk)
            if time.monotonic() > end:
                raise TimeoutError("truncated: too slow")


def _get(endpoint: ClusterEndpoint, path: str, query: Mapping[str, Any], *, stream: bool = False) -> requests.Response:
    response = requests.get(
        endpoint.url + path,
        params=dict(query),
        headers=dict(endpoint.headers or {}),
        timeout=RESPONSE_TIMEOUT_S,
        stream=stream,
        **direct(endpoint.url),
    )
    response.raise_for_status()
    return response


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]
