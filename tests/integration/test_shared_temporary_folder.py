"""Nodes of a Ray that have one temporary folder, as containers of one host do, or do not have one storage."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.driver_process import RayHead, Run
from tests.integration.ray_cluster import ray_cluster
from tests.trainers.synthetic import content
from trainers.errors import ConfigError, DataError

pytestmark = pytest.mark.long
TASK = Path(__file__).parents[2] / "task.py"
# A disk of the process's own at the first folder, with what is in the second.
OWN_DISK = 'mount -t tmpfs own "$0" && cp -r "$1"/. "$0" && shift && exec "$@"'


def test_what_the_nodes_do_not_share_is_refused_before_anything_is_prepared(tones: Path, tmp_path: Path) -> None:
    """The driver has a disk of its own at the storage path, and at the folder of the recordings."""
    runs, recordings, empty = (tmp_path / name for name in ("runs", "recordings", "empty"))
    for folder in (runs, recordings, empty):
        folder.mkdir()
    if subprocess.run([*isolated(runs, empty), "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a disk of its own")

    def ended(disk: list[str], data: Path, head: RayHead) -> "subprocess.CompletedProcess[str]":
        changes: dict[str, Any] = {
            "data": {split: str(data / f"{split}.csv") for split in ("train", "validation", "test")},
            "run.storage_path": str(runs),
        }
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(content(changes)))
        return subprocess.run(
            [*disk, sys.executable, str(TASK), "--config", str(recipe)],
            env={**os.environ, "RAY_ADDRESS": head.address},
            capture_output=True,
            text=True,
            check=False,
        )

    with ray_cluster(num_cpus=2) as (cluster, head):
        nodes = [cluster.add_node(num_cpus=2).node_id for _ in range(2)]
        storage = ended(isolated(runs, empty), tones, head)
        data = ended(isolated(recordings, tones), recordings, head)
    assert storage.returncode == ConfigError.exit_code, storage.stderr
    assert f"run.storage_path: {runs} is not the same for all nodes" in storage.stderr
    # They have one address.
    assert all(f"(node {node[:8]})" in storage.stderr for node in nodes), storage.stderr
    assert data.returncode == DataError.exit_code, data.stderr
    assert "8 of 8 recordings cannot be read that are read on the driver's node" in data.stderr
    assert f"{recordings}/" in data.stderr and "no such file" in data.stderr
    assert not list((runs / "prepared").glob("*.json"))


def isolated(disk: Path, filled_from: Path) -> list[str]:
    return ["unshare", "--mount", "sh", "-c", OWN_DISK, str(disk), str(filled_from)]


@pytest.mark.timeout(900)
def test_a_worker_on_each_of_them_trains_to_the_end(tones: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "data": {split: str(tones / f"{split}.csv") for split in ("train", "validation", "test")},
        "training.max_steps": 4,
        "training.save_steps": 2,
        "decode.max_length": 8,
        "scaling.num_workers": 2,
        "scaling.placement_strategy": "STRICT_SPREAD",
    }
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content(changes)))
    with ray_cluster(num_cpus=4) as (cluster, head):
        cluster.add_node(num_cpus=2)
        run = Run(head, "shared", str(tmp_path / "runs"), recipe, [], tmp_path / "driver.log")
        run.start()
        run.finish()
    assert run.journal.read().finished is not None
    logs = [key for key in (entry.key for entry in run.folder.list_files("attempts/1")) if "rank" in key]
    assert len(logs) == 2, logs
