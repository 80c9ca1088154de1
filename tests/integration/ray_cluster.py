"""Rays that tests start: of more logical CPUs than there are cores, and each with a temporary folder of its own."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from tests.integration import worker_setup
from tests.integration.driver_process import RayHead
from tests.integration.worker_server import worker_server
from tests.integration.worker_setup import SOCKET_VARIABLE
from tests.s3 import AWS_VARIABLES
from trainers.distributed.local_ray import free_ports


@contextmanager
def ray_cluster(**head: Any) -> Iterator[tuple[Cluster, RayHead]]:
    """A Ray which drivers in other processes join, and which takes jobs.

    Args:
        head: Arguments of its head node.
    """
    # Ports of its own, so that another Ray on the machine is not in the way.
    ports = dict(zip(("dashboard_port", "dashboard_agent_listen_port"), free_ports(2), strict=True))
    with pytest.MonkeyPatch.context() as node:
        # Credentials are each node's own; they do not travel with a run.
        for name, value in AWS_VARIABLES.items():
            node.setenv(name, value)
        # A job's `python` is the one that runs the tests.
        node.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        # A job's driver joins the newest Ray of its head's temporary folder. Ray's sockets lie in it, and a socket's
        # path may have 107 bytes only.
        with tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp", ignore_cleanup_errors=True) as folder:
            node.setenv("RAY_TMPDIR", folder)
            with worker_server(Path(folder)) as workers:
                node.setenv(SOCKET_VARIABLE, str(workers))
                arguments = {"include_dashboard": True, "setup_worker_path": worker_setup.__file__, **ports, **head}
                cluster = Cluster(initialize_head=True, head_node_args=arguments)
                try:
                    yield cluster, RayHead(cluster.address, f"http://{cluster.webui_url}")
                finally:
                    cluster.shutdown()
