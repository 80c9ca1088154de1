"""`--debug`: every stage of a recipe, small, in a folder that is gone afterwards."""

import json
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor
from typer.testing import CliRunner

from jobs.cli.app import app as command_line
from tests.trainers.synthetic import content
from trainers.errors import DataError, ResumeError
from trainers.main import main
from trainers.pipeline.trials.debug_run import CLIPS

STAGES = ["model", "prepare", "train", "evaluate", "save", "resume", "export", "score"]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def debug(tones: Path, folder: Path, changes: dict[str, Any]) -> int:
    """Debugs a recipe that is meant for a cluster with GPUs and a bucket."""
    return main(["--config", str(write_recipe(tones, folder, changes)), "--debug"])


def write_recipe(tones: Path, folder: Path, changes: dict[str, Any]) -> Path:
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        yaml.safe_dump(
            content(
                {
                    "run.storage_path": "s3://not-there/runs",
                    "data": {split: str(tones / f"{split}.csv") for split in ("train", "validation", "test")},
                    "training": {"max_steps": 5000, "save_steps": 500, "global_batch_size": 64, "bf16": True},
                    "scaling": {"num_workers": 4, "use_gpu": True},
                    **changes,
                }
            )
        )
    )
    return recipe


def stages_in(output: str) -> list[str]:
    """The stages that have a line, and what the last line says."""
    lines = [line.removeprefix("debug: ") for line in output.splitlines() if line.startswith("debug: ")]
    return [line.split()[0] for line in lines if " s · " in line] + [lines[-1].partition(",")[0]]


def test_every_stage_of_a_recipe_runs_and_nothing_is_kept(
    tones: Path, tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert debug(tones, tmp_path, {}) == 0
    output = capsys.readouterr().out
    assert stages_in(output) == [*STAGES, "all stages work"]
    assert "debug: a new run in one process on a CPU, so without scaling\n" in output
    assert "resuming from checkpoint-1-" in output
    assert f"train {CLIPS['train']} clips · validation {CLIPS['validation']} clips" in output
    assert [*temporary.iterdir()] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml", "temporary"]


@pytest.mark.long
def test_large_weights_are_not_even_read(
    tones: Path, tmp_path: Path, hub_whisper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = tmp_path / "whisper"
    shutil.copytree(hub_whisper, large, ignore=shutil.ignore_patterns("*.safetensors"))
    sizes = dict.fromkeys(("encoder_layers", "decoder_layers", "num_hidden_layers"), 32)
    described = json.loads((large / "config.json").read_text())
    (large / "config.json").write_text(json.dumps({**described, **sizes, "d_model": 1280}))
    model = {"name_or_path": str(large), "language": "Serbian", "max_context_s": 3}
    # The stand-in has fewer layers than are asked for.
    changes = {"adapt": {"method": "last_n_layers", "n": 8}, "decode.max_length": 8}
    assert debug(tones, tmp_path, {"model": model, **changes}) == 0
    output = capsys.readouterr().out
    assert stages_in(output) == [*STAGES, "all stages work"]
    assert f"of {large}" in output


def test_a_ctc_model_without_a_vocabulary_learns_one(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "wav2vec2"
    Wav2Vec2Config(architectures=["Wav2Vec2ForPreTraining"]).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    changes = {"model": {"name_or_path": str(folder)}, "adapt.method": "lora"}
    assert debug(tones, tmp_path, changes) == 0
    assert stages_in(capsys.readouterr().out) == [*STAGES, "all stages work"]


@pytest.mark.long
def test_the_command_that_init_prints_runs_its_recipe(
    tones: Path, tmp_path: Path, hub_whisper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    made = runner.invoke(command_line, ["init", str(tones), "--language", "Serbian", "--model", str(hub_whisper)])
    command = next(line for line in made.output.splitlines() if line.endswith("keeps no files"))
    answer = runner.invoke(command_line, shlex.split(command, comments=True)[1:])
    assert answer.exit_code == 0
    assert stages_in(answer.output) == [*STAGES, "all stages work"]


def test_a_stage_that_fails_is_named_with_the_error_and_its_exit_code(
    tones: Path, tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing.csv"
    missing.write_text("path,text\nnowhere.wav,one\n")
    assert debug(tones, tmp_path, {"data.test": str(missing)}) == DataError.exit_code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"debug: prepare failed with exit code {DataError.exit_code}: ")
    assert "nowhere.wav" in last
    assert [*temporary.iterdir()] == []


def test_the_rayscribe_command_debugs_too(tones: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.csv"
    missing.write_text("path,text\nnowhere.wav,one\n")
    recipe = write_recipe(tones, tmp_path, {"data.train": str(missing)})
    answer = CliRunner().invoke(command_line, ["train", str(recipe), "--debug"])
    assert answer.exit_code == DataError.exit_code
    assert f"debug: prepare failed with exit code {DataError.exit_code}: " in answer.stderr


def test_a_checkpoint_that_is_not_gone_on_from_is_a_failure(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trainers.training.worker.starting_point", lambda *_: None)
    assert debug(tones, tmp_path, {}) == ResumeError.exit_code
    assert "debug: resume failed with exit code 5: training goes on from step 0" in capsys.readouterr().err


@pytest.mark.long
def test_what_nobody_foresaw_is_shown_with_its_stage(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("trainers.training.worker.export_model")
    assert debug(tones, tmp_path, {}) == 1
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.splitlines()[-1].startswith("debug: export failed with exit code 1: ")


def test_another_verb_is_refused(tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content()))
    assert main(["--config", str(tmp_path / "recipe.yaml"), "--verb", "prepare", "--debug"]) == 2
    assert "leave out --verb prepare" in capsys.readouterr().err
