"""`rayscribe submit --dry-run`: the whole request as text, compared with golden files.

`REGENERATE_GOLDEN=1 pytest tests/jobs/cli/test_dry_run.py` rewrites them; review the difference before you commit it.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from jobs.cli.app import app
from tests.jobs.sample import CONTENT

GOLDEN = Path(__file__).parent / "golden"
RUNTIME_ENV = {
    "pip": "requirements.txt",
    "index_url": "https://${INDEX_USER}:${INDEX_PASSWORD}@pypi.example.org/simple",
    "env_vars": {"WANDB_PROJECT": "sr"},
    "secrets": {"HF_TOKEN": {"file": "/run/secrets/hf"}, "WANDB_API_KEY": {"env": "TEAM_WANDB_API_KEY"}},
}
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "plain": ({}, []),
    "whole": (
        {
            "queue": "research",
            "depends_on": ["prepared"],
            "tags": ["serbian", "team:speech"],
            "address": "http://10.0.0.1:8265",
            "stop_grace_s": 300,
            "runtime_env": RUNTIME_ENV,
        },
        ["--set", "training.max_steps=200", "--priority", "10"],
    ),
    "uv": ({"runtime_env": {**RUNTIME_ENV, "pip": None, "uv": ["jiwer==4.0.0"]}}, []),
    "script": ({"runtime_env": {**RUNTIME_ENV, "install": "script"}}, []),
    "elastic": (
        {},
        ["--set", "scaling.num_workers={min: 1, max: 4}", "--set", "training.global_batch_size=16"],
    ),
    "rocm": (
        {},
        [
            *("--set", "scaling.accelerator=rocm", "--set", "scaling.accelerator_type=AMD-Instinct-MI300X-OAM"),
            *("--set", "scaling.label_selector={pool: amd}"),
        ],
    ),
    "shipped": ({}, ["--set", "data={ship: true, train: ../speech/train.csv, validation: ../speech/valid.csv}"]),
    "resumed": ({}, ["--set", "run.resume=from:s3://bucket/runs/old/checkpoints/checkpoint-40-a1-abc"]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_request_is_printed_completely(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, arguments = CASES[name]
    root = tmp_path / "repository"
    (root / "specs").mkdir(parents=True)
    (root / "task.py").write_text("print('trains')\n")
    (root / "specs/requirements.txt").write_text("jiwer==4.0.0\nnum2words==0.5.14\n")
    (tmp_path / "speech").mkdir()
    for split in ("train", "valid"):
        (tmp_path / f"speech/{split}.csv").write_text(f"path,text\n{split}.wav,jedan\n")
        (tmp_path / f"speech/{split}.wav").write_text(split)
    (root / "specs/sr.yaml").write_text(yaml.safe_dump({**CONTENT, "job": job}))
    for secret in ("INDEX_PASSWORD", "HF_TOKEN", "TEAM_WANDB_API_KEY"):
        monkeypatch.setenv(secret, "never-to-be-printed")
    monkeypatch.setenv("LOGNAME", "ana")
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(root)
    result = CliRunner().invoke(app, ["submit", "specs/sr.yaml", "--dry-run", *arguments])
    assert result.exit_code == 0, result.output
    assert "never-to-be-printed" not in result.output
    assert not (tmp_path / "home").exists(), "nothing is written"
    compare(result.stdout, tmp_path, f"submit-{name}")


def compare(printed: str, tmp_path: Path, name: str) -> None:
    """Compares a request with a golden file, without what differs from machine to machine."""
    printed = printed.replace(str(tmp_path), "/tmp/here")
    sha256 = yaml.safe_load(printed)["runtime_env"]["working_dir"].removeprefix("<packages>/").removesuffix(".zip")
    printed = printed.replace(sha256, "<sha256>")
    printed = re.sub(r"zip_bytes: \d+", "zip_bytes: <depends on zlib>", printed)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("REGENERATE_GOLDEN"):
        path.write_text(printed)
    assert printed == path.read_text()


LINES: dict[str, list[str]] = {
    "torchrun": ["torchrun", "--nnodes=2", "--nproc_per_node=4", "train.py", "hparams.yaml", "--lr=1e-4"],
    "hpu": [
        "python",
        "gaudi_spawn.py",
        "--world_size",
        "8",
        "--use_mpi",
        "train.py",
        "--use_habana",
        "--use_lazy_mode",
    ],
}


@pytest.mark.parametrize("name", LINES)
def test_the_request_of_a_program_is_printed_completely(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "program"
    root.mkdir()
    (root / "train.py").write_text("print('trains')\n")
    monkeypatch.setenv("LOGNAME", "ana")
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.chdir(root)
    options = ["--dry-run", "--name", "sr", "--storage-path", "/mnt/runs", "--env", "SEED=1"]
    result = CliRunner().invoke(app, ["launch", *options, "--", *LINES[name]])
    assert result.exit_code == 0, result.output
    compare(result.stdout, tmp_path, f"launch-{name}")


def test_a_program_reads_the_same_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "task.py").write_text("print('trains')\n")
    (tmp_path / "sr.yaml").write_text(yaml.safe_dump(CONTENT))
    monkeypatch.chdir(tmp_path)
    results = [CliRunner().invoke(app, ["submit", "sr.yaml", "--dry-run", *more]) for more in ([], ["--json"])]
    assert json.loads(results[1].stdout) == yaml.safe_load(results[0].stdout)


@pytest.mark.parametrize("service", [[], ["--service", "http://127.0.0.1:9"]])
def test_a_recipe_without_a_storage_path_is_printed_with_the_users_own_while_no_cluster_is_named(
    service: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "task.py").write_text("print('trains')\n")
    content = {**CONTENT, "run": {**CONTENT["run"], "storage_path": None}}
    (tmp_path / "sr.yaml").write_text(yaml.safe_dump(content))
    for name in ("RAY_API_SERVER_ADDRESS", "RAYSCRIBE_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["submit", "sr.yaml", "--dry-run", *service])
    assert result.exit_code == 0, result.output
    assert str(Path("~/ray_results").expanduser()) in result.output
