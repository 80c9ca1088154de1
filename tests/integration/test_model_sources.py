"""Runs whose weights come from a URL, and from another run: what they began with is recorded, changes are said."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_second_starts import first, run_folder
from tests.trainers.models.sources.conftest import write_ctc
from tests.trainers.models.sources.test_sources import zipped
from tests.trainers.synthetic import config
from tests.web import WebServer
from trainers.config.schema import TrainConfig
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.storage import sha256_of


def small(tones: Path, folder: Path, source: str, **changes: Any) -> TrainConfig:
    """A few steps of an adapter on a very small CTC model."""
    length = {"training.max_steps": 4, "training.save_steps": 2, "training.eval_steps": 2, "training.warmup_steps": 0}
    options = {
        "adapt.method": "lora",
        "decode": {},
        "data.do_lower_case": True,
        "training.lr_scheduler_type": "constant",
    }
    return config(first(tones, folder) | length | options | {"model": {"name_or_path": source}} | changes)


def recorded(wanted: TrainConfig) -> Any:
    return json.loads((run_folder(wanted) / "experiment.json").read_bytes())["model_sources"]["name_or_path"]


def test_weights_of_a_url_are_recorded_kept_and_begin_another_run(
    tones: Path, tmp_path: Path, web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))
    file = zipped(write_ctc(tmp_path / "ctc"), tmp_path / "a.zip")
    url = web.publish("/a.zip", file.read_bytes())
    wanted = small(tones, tmp_path / "runs", url)
    fit(wanted, LocalEngine())
    began_with = {"source": url, "revision": None, "sha256": sha256_of(file)}
    assert recorded(wanted) == began_with
    bases = list((run_folder(wanted) / "checkpoints").glob("base-*/model.safetensors"))
    assert len(bases) == 1, "nobody else may have them when the adapter is merged"

    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("model/added.json", "{}")
    web.publish("/a.zip", file.read_bytes())
    longer = small(tones, tmp_path / "runs", url, **{"training.max_steps": 6})
    fit(longer, LocalEngine())
    changes = json.loads((run_folder(wanted) / "attempts" / "2" / "attempt.json").read_bytes())["changes"]
    (said,) = [change for change in changes if change.startswith("model.name_or_path")]
    assert said == (
        f"model.name_or_path: {url}: other content than the run began with "
        f"(SHA-256 {began_with['sha256']} → {sha256_of(file)})"
    )
    assert recorded(wanted) == began_with

    student = small(tones, tmp_path / "runs", "run:small", **{"run.name": "student", "adapt.method": "full"})
    fit(student, LocalEngine())
    assert recorded(student)["source"] == "run:small"
    assert (run_folder(student) / "model" / "model.safetensors").exists()
