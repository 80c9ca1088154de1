"""A run of another distribution's speech language model: a frozen base of bfloat16, and scores without a loss."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.contract.family_cases import CASES, plug_in
from tests.trainers.synthetic import config, write_corpus
from trainers.config.schema import TrainConfig
from trainers.models.families import family_of_folder
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.fit import fit

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("tenant_run")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainConfig]:
    """The config of a run that has finished."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        plug_in(patch)
        (folder / "weights").mkdir()
        CASES["qwen3-asr"].write(folder / "weights")
        texts = ["one two", "three", "four four"]
        wanted = config(
            {
                **{
                    f"data.{split}": str(write_corpus(folder, texts, durations_s=[0.5, 0.7, 0.7], name=split))
                    for split in ("train", "validation", "test")
                },
                "run.name": "run",
                "run.storage_path": str(folder),
                "model": {"name_or_path": str(folder / "weights"), "language": "English", "dtype": "bfloat16"},
                "adapt.method": "lora",
                "training.max_steps": 2,
                "training.save_steps": 1,
                "training.logging_steps": 1,
                "training.learning_rate": 1e-2,
                "decode.max_length": 8,
                "training.report_to": ["tensorboard"],
            }
        )
        fit(wanted, LocalEngine())
        yield wanted


def folder_of(finished: TrainConfig) -> Path:
    return Path(str(finished.run.storage_path)) / "run"


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_an_adapter_of_float32_is_trained_and_merged_into_a_model_of_bfloat16(finished: TrainConfig) -> None:
    model = folder_of(finished) / "model"
    assert {weight.dtype for weight in load_file(model / "model.safetensors").values()} == {torch.bfloat16}
    adapter = load_file(model / "adapter" / "adapter_model.safetensors")
    assert {weight.dtype for weight in adapter.values()} == {torch.float32}
    assert any(weight.any() for name, weight in adapter.items() if "lora_B" in name)
    config_file = read(model / "config.json")
    assert config_file["dtype"] == "bfloat16"
    assert family_of_folder(model).open_exported(model).model.dtype == torch.float32


def test_no_loss_is_among_its_scores(finished: TrainConfig) -> None:
    folder = folder_of(finished)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines if "loss" in line} == {1, 2}
    # Step 0 has the scores of the initial weights.
    assert {line["step"] for line in lines if "eval_wer" in line} == {0, 1, 2}
    score, result = read(folder / "evaluation" / "test.json"), read(folder / "result.json")
    validation = read(folder / "evaluation" / "validation.json")
    for scores in (score, validation, result["validation"], result["test"], *(x for x in lines if "eval_wer" in x)):
        assert [name for name in scores if "loss" in name] == []
    assert "Loss" not in (folder / "model" / "README.md").read_text()


def test_evaluate_gives_the_scores_of_the_run(finished: TrainConfig, tmp_path: Path) -> None:
    folder = folder_of(finished)
    elsewhere = finished.model_copy(update={"run": finished.run.model_copy(update={"storage_path": str(tmp_path)})})
    totals = evaluate(elsewhere, LocalEngine(), model=str(folder), split="test").totals
    assert totals == {**read(folder / "result.json")["test"], "split": "test"}
