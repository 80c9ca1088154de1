"""Two nodes of a Ray that have one temporary folder, as containers of one host do."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.driver_process import Run
from tests.integration.ray_cluster import ray_cluster
from tests.trainers.synthetic import content


@pytest.mark.slow
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
