"""One real Ray for all tests of this folder, and runs of task.py on it that can be killed."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from jobs.demo import free_ports
from tests.integration.killing import RayHead
from tests.s3 import AWS_VARIABLES
from tests.trainers.synthetic import write_corpus

WORDS = ("red", "green", "blue", "left right", "up and down", "stop", "go on then", "one two three four")
LOGICAL_CPUS = 8


@pytest.fixture(scope="session")
def ray_head() -> Iterator[RayHead]:
    """A Ray of more logical CPUs than there are cores, which drivers in other processes join."""
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
            head = {"num_cpus": LOGICAL_CPUS, "include_dashboard": True, **ports}
            cluster = Cluster(initialize_head=True, head_node_args=head)
            yield RayHead(cluster.address, f"http://{cluster.webui_url}")
            cluster.shutdown()


@pytest.fixture(scope="session")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.csv, validation.csv and test.csv of tones with made-up transcripts."""
    folder = tmp_path_factory.mktemp("tones")
    for name, count in (("train", 48), ("validation", 6), ("test", 6)):
        texts = [WORDS[(number + len(name)) % len(WORDS)] for number in range(count)]
        durations_s = [0.3 + 0.07 * (number * 7 % 11) for number in range(count)]
        write_corpus(folder, texts, durations_s=durations_s, name=name)
    return folder
