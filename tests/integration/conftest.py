"""One real Ray for all tests of this folder, and what runs of task.py on it learn from."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.driver_process import RayHead
from tests.integration.forked_process import REPOSITORY
from tests.integration.ray_cluster import ray_cluster
from tests.trainers.synthetic import content, write_corpus

WORDS = ("red", "green", "blue", "left right", "up and down", "stop", "go on then", "one two three four")
LOGICAL_CPUS = 8
STEPS = 40
# With many processes, or up to a limit that another's growth would reach.
FILLING_MEMORY = ("test_fenced", "test_hurt_clusters")


def pytest_itemcollected(item: pytest.Item) -> None:
    """One process runs, on one Ray, all that need it, and what fills the memory; modules of the rest stay together."""
    item.add_marker(pytest.mark.integration)
    assert isinstance(item, pytest.Function)
    together = "ray_head" in item.fixturenames or item.path.stem in FILLING_MEMORY
    item.add_marker(pytest.mark.xdist_group("ray" if together else item.path.stem))


@pytest.fixture(scope="session")
def ray_head() -> Iterator[RayHead]:
    """The session's Ray. It takes each submission id once: no two runs of one name in all of these tests."""
    with ray_cluster(num_cpus=LOGICAL_CPUS) as (_, head):
        yield head


@pytest.fixture(scope="session")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.csv, validation.csv and test.csv of tones with made-up transcripts."""
    folder = tmp_path_factory.mktemp("tones")
    for name, count in (("train", 48), ("validation", 6), ("test", 6)):
        texts = [WORDS[(number + len(name)) % len(WORDS)] for number in range(count)]
        durations_s = [0.3 + 0.07 * (number * 7 % 11) for number in range(count)]
        write_corpus(folder, texts, durations_s=durations_s, name=name)
    return folder


@pytest.fixture
def training_tree(tones: Path, tmp_path: Path) -> Path:
    """A repository whose task.py trains for real, with a recipe.yaml of two workers and dropout."""
    tree = tmp_path / "repository"
    tree.mkdir()
    for name in ("trainers", "runtime_env"):
        shutil.copytree(REPOSITORY / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "task.py", tree)
    changes: dict[str, Any] = {
        "run.max_failures": 0,
        "data": {split: str(tones / f"{split}.csv") for split in ("train", "validation", "test")},
        "data.cache_dir": str(tmp_path / "prepared"),
        "model.dropout": 0.1,
        "training.max_steps": STEPS,
        "training.save_steps": 10,
        "training.eval_steps": 10,
        "training.logging_steps": 1,
        "training.generation_max_length": 8,
        "scaling.num_workers": 2,
    }
    (tree / "recipe.yaml").write_text(yaml.safe_dump(content(changes)))
    return tree
