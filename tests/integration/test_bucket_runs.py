"""Runs without Ray whose data, prepared sets and run folder are all in a bucket: they end as one in folders does."""

import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.folder_server import web_server
from tests.integration.training_trees import write_recipe
from tests.metrics_lines import metrics_of
from tests.object_stores import options_of
from tests.s3 import FaultProxy, serving
from tests.trainers.data.sources.archives.made_archives import recording, write_tar
from trainers.config.storage_location import StorageOptions
from trainers.main import main
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
from trainers.storage import RetryPolicy, Storage, open_storage

MAX_STEPS, SAVE_STEPS = 6, 3


def trained(root: Storage, options: StorageOptions, folder: Path, **more: Any) -> RunFolder:
    """The folder of a run that has learned from what is in `tones` of a storage; `more` is of its recipe, by parts."""
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
        **more,
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


@pytest.mark.long
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


def test_a_run_of_which_a_fifth_of_the_calls_fails_ends_as_one_without_failures(
    tones: Path, tmp_path: Path, s3_bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the data, and noise in an archive, are on a web server; all else is in a bucket."""
    monkeypatch.setattr(RetryPolicy, "delay_s", lambda policy, attempt: 0.01)
    noise = write_tar(tmp_path / "web" / "noise.tar", [("hum.flac", recording(3))])
    shutil.copytree(tones, noise.parent / "tones")

    def result_of(name: str, s3: str, web: str) -> dict[str, Any]:
        # A place of its own: what is prepared of it is not on this node yet.
        bucket = open_storage(f"{s3_bucket}/{name}", StorageOptions(s3_endpoint))
        bucket.upload_folder(tones, "tones")
        bucket.write_bytes("noise.csv", f"path\n{web}/noise.tar/hum.flac\n".encode())
        options, corpora = StorageOptions(s3), {"bucket": f"{s3_bucket}/{name}/tones", "web": f"{web}/tones"}
        data = {
            "mix": [{"name": kind, "train": f"{corpora[kind]}/train.csv", "weight": 1} for kind in corpora],
            **{split: f"{corpora['bucket']}/{split}.csv" for split in ("validation", "test")},
        }
        root = open_storage(f"{s3_bucket}/{name}", options)
        (tmp_path / name).mkdir()
        changes = {"data": data, "augment.noise_manifest": root.url("noise.csv")}
        found = result(trained(root, options, tmp_path / name, **changes))
        prepared = open_storage(root.url("runs/prepared"), options)
        shards = [entry.key for entry in prepared.list_files() if entry.key.endswith(".arrow")]
        assert len(shards) >= 4
        return {**found, "prepared": sorted(hashlib.sha256(prepared.read_bytes(key)).hexdigest() for key in shards)}

    with web_server(noise.parent) as web:
        calm, proxies = result_of("calm", s3_endpoint, web), [FaultProxy(s3_endpoint), FaultProxy(web)]
        for proxy in proxies:
            proxy.fail_share(0.2, seed=7)
        with serving(proxies[0].server), serving(proxies[1].server):
            assert result_of("faulty", *(proxy.url for proxy in proxies)) == calm
    assert all(proxy.failed > len(proxy.requests) / 10 for proxy in proxies)
