"""The agent of a node against a real Ray: its notice drains that node, and no other."""

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.state import state

from tests.cluster_configs.providers.metadata_server import metadata_server
from tests.integration.forked_process import REPOSITORY
from tests.integration.ray_cluster import ray_cluster

TIMEOUT_S = 60.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, f"no {what} in {TIMEOUT_S} s"
        time.sleep(0.1)


def is_alive(node_id: str) -> bool:
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())


@pytest.mark.long
def test_a_notice_drains_the_agent_s_node_which_ends_once_nothing_runs_there(tmp_path: Path) -> None:
    with ray_cluster(num_cpus=1) as (cluster, head), metadata_server("aws") as server:
        node, other = (cluster.add_node(num_cpus=1).node_id for _ in range(2))
        ray.init(head.address, log_to_driver=False)
        try:
            kind: Any = ray.remote(num_cpus=1)(Holder)
            holders = [kind.remote() for _ in range(3)]
            homes = dict(zip(ray.get([holder.node.remote() for holder in holders]), holders, strict=True))
            log = tmp_path / "agent.txt"
            command = [sys.executable, "-m", "trainers.distributed.preemption_agent"]
            command += ["--metadata-url", server.url, "--node-id", node]
            with log.open("w") as output, subprocess.Popen(command, cwd=REPOSITORY, stdout=output) as agent:
                try:
                    wait_until(lambda: "instance-action" in str(server.asked), "question of the agent")
                    assert state.get_draining_nodes() == {}
                    server.announce((datetime.now(UTC) + timedelta(minutes=2)).isoformat())
                    wait_until(lambda: list(state.get_draining_nodes()) == [node], "drained node")
                    assert is_alive(node)
                    ray.kill(homes[node])
                    wait_until(lambda: not is_alive(node), "end of the node")
                    assert is_alive(other)
                    assert agent.wait(TIMEOUT_S) == 0
                finally:
                    agent.kill()
            lines = log.read_text().splitlines()
            assert lines[0] == "waiting for a notice of AWS that this machine will be preempted"
            assert len(lines) == 2 and lines[1].endswith(f"Ray node {node} is drained")
        finally:
            ray.shutdown()


class Holder:
    """Keeps a node busy."""

    def node(self) -> str:
        """Where it runs."""
        return ray.get_runtime_context().get_node_id()
