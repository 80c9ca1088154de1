"""Two nodes of a Ray that have one temporary folder, as containers of one host do, or do not have one storage."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.driver_process import Run
from tests.integration.ray_cluster import ray_cluster
from tests.trainers.synthetic import content

TASK = Path(__file__).parents[2] / "task.py"
OWN_DISK = 'mount -t tmpfs own "$0" && exec "$@"'


def test_a_folder_that_the_nodes_do_not_share_is_refused_before_anything_is_prepared(
    tones: Path, tmp_path: Path
) -> None:
    """The driver has a disk of its own at the storage path."""
    runs = tmp_path / "runs"
    runs.mkdir()
    isolated = ["unshare", "--mount", "sh", "-c", OWN_DISK, str(runs)]
    if subprocess.run([*isolated, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a disk of its own")
    changes: dict[str, Any] = {
        "data": {split: str(tones / f"{split}.csv") for split in ("train", "validation", "test")},
        "run.storage_path": str(runs),
    }
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content(changes)))
    with ray_cluster(num_cpus=2) as (cluster, head):
        cluster.add_node(num_cpus=2)
        ended = subprocess.run(
            [*isolated, sys.executable, str(TASK), "--config", str(recipe)],
            env={**os.environ, "RAY_ADDRESS": head.address},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 2, ended.stderr
    assert f"run.storage_path: {runs} is not one folder for all nodes" in ended.stderr
    assert "prepare train" not in ended.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_worker_on_each_of_them_trains_to_the_end(tones: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "data": {split: str(tones / f"{split}.csv") for split in ("train", "validation", "test")},
        "training.max_steps": 4,
        "training.save_steps": 2,
        "training.generation_max_length": 8,
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
