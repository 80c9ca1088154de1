"""Nodes that the shipped file's commands start take nothing from who has no token, at any of their ports."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_configs.rendering.cluster_spec import load_cluster_spec
from cluster_configs.rendering.render import render
from cluster_configs.rendering.targets import Target
from jobs.clusters.managed.cluster_record import ensure_token
from tests.integration.guarded_nodes import HEAD, WORKER
from tests.test_architecture import ROOT

TIMEOUT_S = 600
# What is in them ends with the first process.
NAMESPACES = ["unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
OWN = [
    f"ray_up.head_ip={HEAD}",
    f"ray_up.worker_ips=[{WORKER}]",
    'pools={"hosts": {"hardware": "cpu", "cpus": 2, "min": 1, "max": 1}}',
]
PORTS = {
    "head": {6379, 8076, 8077, 8078, 8079, 8090, 8265, 10001, 44217, 44227, 52365},
    "worker": {8076, 8077, 8078, 8079, 8090, 52365},
}
# Open to read for who reaches the port: numbers for Prometheus (of the node, the autoscaler, the dashboard).
METRICS_PORTS = {8090, 44217, 44227}
DASHBOARD_PORT = 8265

pytestmark = [pytest.mark.system]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the nodes answered."""
    if os.geteuid() != 0:
        pytest.skip("nodes in network namespaces need root")
    if missing := [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]:
        pytest.skip(f"nodes in network namespaces need {', '.join(missing)}: apt-get install iproute2 util-linux")
    tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"this machine gives no namespaces: {tried.stderr.strip()}")
    folder = tmp_path_factory.mktemp("nodes")
    with pytest.MonkeyPatch.context() as own:
        own.setenv("RAYSCRIBE_HOME", str(folder / "client" / ".rayscribe"))
        made = ensure_token("speech")
        assert stat.S_IMODE(made.stat().st_mode) == 0o600
        assert ensure_token("speech").read_bytes() == made.read_bytes()
    spec = load_cluster_spec(ROOT / "cluster_configs" / "specs" / "local.yaml", OWN)
    file, token = folder / "local.yaml", folder / "node" / ".ray" / "auth_token"
    file.write_text(render(spec, Target.RAY_UP), encoding="utf-8")
    token.parent.mkdir(parents=True)
    shutil.copy2(made, token)
    module = [sys.executable, "-m", "tests.integration.guarded_nodes", str(file), str(token)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*NAMESPACES, *module],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert token.read_text() not in ended.stdout + ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


def test_a_job_without_the_token_is_refused(found: dict[str, Any]) -> None:
    assert found["strangers"]["ray job submit"] != 0
    assert "401" in found["printed"]["ray job submit"] or "Unauthorized" in found["printed"]["ray job submit"]
    assert not found["intruder"]


def test_neither_a_driver_nor_a_ray_client_joins_without_the_token(found: dict[str, Any]) -> None:
    assert found["with_token"] == "OK"
    assert found["strangers"]["ray.init"] != 0
    assert found["strangers"]["ray client"] != 0


def test_every_port_of_both_nodes_was_called(found: dict[str, Any]) -> None:
    for node, ports in PORTS.items():
        listening = {socket["port"] for socket in found["sockets"] if socket["node"] == node}
        assert ports <= listening
        # Beside those with a number of their own: workers, from 10002 to 19999, as the file says.
        workers = listening - ports
        assert workers
        assert all(10_002 <= port <= 19_999 for port in workers)
    silent = [socket for socket in found["sockets"] if not socket["http"] and not socket["grpc"]]
    assert silent == []


def test_no_method_of_any_service_is_called_without_the_token(found: dict[str, Any]) -> None:
    for socket in (socket for socket in found["sockets"] if socket["grpc"]):
        # The methods that are there ask for the token; the others belong to the services of other ports.
        assert set(socket["grpc"]) == {"UNAUTHENTICATED", "UNIMPLEMENTED"}, socket


def test_http_gives_metrics_and_the_dashboards_start_page_and_nothing_else(found: dict[str, Any]) -> None:
    for socket in (socket for socket in found["sockets"] if socket["http"]):
        answers = {request: status for request, status in socket["http"].items() if status not in ("401", "403")}
        if socket["port"] in METRICS_PORTS:
            assert set(answers.values()) == {"metrics", "405"}, socket
        else:
            assert answers == ({"GET /": "200"} if socket["port"] == DASHBOARD_PORT else {}), socket


def test_the_dashboard_listens_on_loopback_alone(found: dict[str, Any]) -> None:
    addresses = {socket["address"] for socket in found["sockets"] if socket["port"] == DASHBOARD_PORT}
    assert addresses == {"127.0.0.1"}


def test_the_token_is_in_no_arguments_and_in_no_log(found: dict[str, Any]) -> None:
    assert found["token_in_arguments"] == []
    assert found["token_in_logs"] == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "cluster_configs" / "kuberay").glob("*.yaml")), ids=lambda path: path.name
)
def test_kubernetes_gets_the_token_by_the_name_of_its_secret(path: Path) -> None:
    documents = [*yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    assert "Secret" not in {document["kind"] for document in documents}
    ray = next(document["spec"] for document in documents if document["apiVersion"] == "ray.io/v1")
    assert ray.get("rayClusterSpec", ray)["authOptions"]["mode"] == "token"
