"""Runs without Ray whose data, prepared sets and run folder are all in a bucket: they end as one in folders does."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.integration.training_trees import write_recipe
from tests.metrics_lines import metrics_of
from tests.object_stores import options_of
from trainers.config.storage_location import StorageOptions
from trainers.main import main
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
from trainers.storage import Storage, open_storage

MAX_STEPS, SAVE_STEPS = 6, 3


def trained(root: Storage, options: StorageOptions, folder: Path) -> RunFolder:
    """The folder of a run that has learned from what is in `tones` of a storage."""
    given = {name: value for name, value in asdict(options).items() if value}
    changes: dict[str, Any] = {
        **{f"run.{name}": value for name, value in given.items()},
        "data": {split: root.url(f"tones/{split}.csv") for split in ("train", "validation", "test")},
        "data.cache_dir": None,
        "run.name": "tones",
        "run.storage_path": root.url("runs"),
        "training.max_steps": MAX_STEPS,
        "training.save_steps": SAVE_STEPS,
        "training.logging_steps": 1,
        "training.per_device_train_batch_size": 4,
        "training.report_to": [],
        # By default, sets in folders are shuffled as a whole, and those in buckets by windows.
        "training.shuffle_window_shards": 64,
        # Forked from this process, which has read the bucket already.
        "training.training_args": {"dataloader_num_workers": 1},
        "checkpoint.num_to_keep": 1,
    }
    recipe = write_recipe(folder / "recipe.yaml", folder, changes)
    assert main(["--config", str(recipe), "--no-ray"]) == 0
    return RunFolder(open_storage(root.url("runs/tones"), options))


def result(folder: RunFolder) -> dict[str, Any]:
    """What must not depend on where a run is kept."""
    state, storage = Journal(folder).read(), folder.storage
    return {
        "losses": [line["loss"] for line in metrics_of(folder) if "loss" in line],
        "weights": [item.files["model.safetensors"]["sha256"] for item in state.checkpoints],
        "model": hashlib.sha256(storage.read_bytes("model/model.safetensors")).hexdigest(),
        "checkpoints": len(storage.list_folders("checkpoints")),
        "scores": json.loads(storage.read_bytes("evaluation/test.json")),
    }


@pytest.fixture(scope="module")
def of_folder(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of the run in folders."""
    root = open_storage(str(tmp_path_factory.mktemp("folder")))
    root.upload_folder(tones, "tones")
    return result(trained(root, StorageOptions(), tmp_path_factory.mktemp("recipe")))


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_a_run_in_a_bucket_ends_as_in_a_folder_and_is_found_finished(
    kind: str,
    tones: Path,
    of_folder: dict[str, Any],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = options_of(kind, request.getfixturevalue(f"{kind}_endpoint"))
    root = open_storage(request.getfixturevalue(f"{kind}_bucket"), options)
    root.upload_folder(tones, "tones")
    folder = trained(root, options, tmp_path)
    assert result(folder) == of_folder
    assert root.list_folders("runs/prepared"), "prepared sets are next to the runs"
    before = [(entry.key, entry.etag) for entry in folder.storage.list_files("journal")]
    capsys.readouterr()
    trained(root, options, tmp_path)
    assert "finished" in capsys.readouterr().out
    assert [(entry.key, entry.etag) for entry in folder.storage.list_files("journal")] == before
