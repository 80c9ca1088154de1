"""A repository with a recipe, a configurable dashboard, and a cluster of given nodes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import ray
import yaml

from jobs.clusters.registry import Clusters
from jobs.preflight.context import Context
from jobs.scheduler.feasibility import Capacity
from jobs.submission.job_spec import JobSpec, load_spec
from tests.s3 import serving
from tests.trainers.synthetic import content
from trainers.findings import Check, Finding, run_check

NOW = datetime(2026, 11, 21, tzinfo=UTC)
VERSIONS = {"rayVersion": ray.__version__, "pythonVersion": "3.11.9"}


@dataclass
class Dashboard:
    """A dashboard's responses.

    Attributes:
        url: Its URL.
        token: The token that it requires. None: it requires none.
        data: The versions that it reports.
        broken: Whether it responds like another web server.
    """

    url: str
    token: str | None = None
    data: Mapping[str, Any] = None  # type: ignore[assignment]
    broken: bool = False

    def respond(self, authorization: str | None) -> tuple[int, str]:
        """Status and body."""
        if self.broken:
            return 200, "<html>a printer</html>"
        if self.token is not None and authorization != f"Bearer {self.token}":
            return (403 if authorization else 401), "no"
        return 200, json.dumps({"result": True, "msg": "", "data": self.data or VERSIONS})


@contextmanager
def dashboard_at(host: str = "127.0.0.1") -> Iterator[Dashboard]:
    """Serves a dashboard on an address of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = dashboard.respond(self.headers.get("Authorization"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer((host, 0), Handler)
    dashboard = Dashboard(f"http://127.0.0.1:{server.server_port}")
    with serving(server):
        yield dashboard


@dataclass
class SizedCluster:
    """RayJobs, as far as preflight uses it."""

    nodes: Sequence[Mapping[str, float]]
    grows_to: Mapping[str, float]

    def capacity(self, grows_to: object) -> Capacity:
        """The sum of its nodes."""
        names = {name for node in self.nodes for name in node}
        total = {name: sum(node.get(name, 0.0) for node in self.nodes) for name in names}
        return Capacity(total=total, can_grow_to={**total, **self.grows_to}, nodes=tuple(self.nodes))

    def close(self) -> None:
        """Nothing to close."""


def clusters_of(*nodes: Mapping[str, float], grows_to: Mapping[str, float] | None = None) -> Clusters:
    """Clusters that all have these nodes."""
    return Clusters(connect=lambda address: SizedCluster(nodes, grows_to or {}))  # type: ignore[arg-type,return-value]


def repository(folder: Path) -> Path:
    """A folder with task.py."""
    root = folder / "repository"
    root.mkdir(exist_ok=True)
    (root / "task.py").write_text("print('trains')\n")
    return root


def spec_in(root: Path, changes: Mapping[str, Any] | None = None, **job: Any) -> JobSpec:
    """A recipe in the repository, read as `rayscribe submit` reads it."""
    path = root / "recipe.yaml"
    changes = {"run.name": "mine", "run.storage_path": "s3://bucket/runs", **(changes or {})}
    path.write_text(yaml.safe_dump({**content(changes), "job": job}))
    return load_spec(path, [], here=root, now=NOW, is_local=lambda address: True)


def context_of(
    folder: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    address: str | None = None,
    clusters: Clusters | None = None,
    deep: bool = False,
) -> Context:
    """A recipe in a small repository, for a cluster."""
    root = repository(folder)
    return Context(spec_in(root, changes), address, clusters or clusters_of({"CPU": 8.0}), deep=deep)


def named(checks: Sequence[Check[Context]], name: str) -> Check[Context]:
    """A check by its name."""
    return next(check for check in checks if check.name == name)


def single_finding(check: Check[Context], context: Context) -> Finding:
    """The only finding of a check."""
    findings = list(run_check(check, context))
    assert len(findings) == 1, findings
    assert findings[0].check == check.name
    return findings[0]
