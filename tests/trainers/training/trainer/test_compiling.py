"""Compiled layers: the same mathematics, weights by the same names, and no run that ends for want of a compiler."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.metrics_lines import metrics_of
from tests.trainers.synthetic import config, write_corpus
from trainers.config.schema import TrainConfig
from trainers.distributed.session import LocalSession
from trainers.models.recognizer import pad_labels
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage
from trainers.training.trainer import compiling
from trainers.training.trainer.planned_batches import Collator

COMPILED, NOT_COMPILED = (
    "2 layers are compiled",
    "warning: training.torch_compile: training continues without compilation: ",
)
TOLERANCE = 1e-5
CTC = {"init": "scratch", "family": "ctc", "architecture": "wav2vec2", "d_model": 16, "feature_encoder_dim": 8}
compile_model = compiling.compile_model


def small(folder: Path, name: str, changes: dict[str, Any]) -> TrainConfig:
    texts = ["one", "two two", "three", "four one two three", "five"]
    for split in ("train", "validation"):
        write_corpus(folder, texts, durations_s=[1, 2, 0.5, 1, 2], name=split)
    return config(
        {
            "run.name": name,
            "run.storage_path": str(folder / "runs"),
            "data": {split: str(folder / f"{split}.csv") for split in ("train", "validation")},
            "training.max_steps": 4,
            "training.save_steps": 2,
            "training.logging_steps": 1,
            "training.per_device_train_batch_size": 2,
            "training.learning_rate": 1e-3,
            "training.report_to": [],
            **changes,
        }
    )


def losses(made: TrainConfig) -> list[float]:
    lines = metrics_of(RunFolder(open_storage(f"{made.run.storage_path}/{made.run.name}")))
    return [line[key] for line in lines for key in ("loss", "eval_loss", "grad_norm") if key in line]


@pytest.mark.integration
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"model.dropout": 0.0}, id="whisper"),
        pytest.param(
            {"training.gradient_checkpointing": True, "training.gradient_accumulation_steps": 2},
            id="checkpointing",
            marks=pytest.mark.long,
        ),
        pytest.param({"training.bf16": True}, id="bf16", marks=pytest.mark.long),
        pytest.param({"adapt": {"method": "lora", "dropout": 0.0}}, id="lora", marks=pytest.mark.long),
        pytest.param({"model": {**CTC, "encoder_layers": 2}}, id="ctc", marks=pytest.mark.long),
    ],
)
def test_a_compiled_model_trains_and_scores_the_same(
    changes: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The graphs of torch's compiler, without its kernels, which take a minute to make.
    monkeypatch.setattr(compiling, "compile_model", partial(compile_model, backend="aot_eager"))
    plain, compiled = (
        small(tmp_path, name, {**changes, "training.torch_compile": name == "compiled"})
        for name in ("plain", "compiled")
    )
    fit(plain, LocalEngine())
    fit(compiled, LocalEngine())
    assert COMPILED in capsys.readouterr().out
    tolerance = 1e-2 if compiled.training.bf16 else TOLERANCE
    assert losses(compiled) == pytest.approx(losses(plain), rel=tolerance)
    weights = [load_file(tmp_path / "runs" / name / "model" / "model.safetensors") for name in ("plain", "compiled")]
    assert weights[0].keys() == weights[1].keys()


@pytest.mark.integration
@pytest.mark.long
def test_a_compiled_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compile_model", partial(compile_model, backend="aot_eager"))
    whole = small(tmp_path, "whole", {"training.torch_compile": True, "training.lr_scheduler_type": "constant"})
    half = {"training.max_steps": 2, "training.torch_compile": True, "training.lr_scheduler_type": "constant"}
    fit(whole, LocalEngine())
    fit(small(tmp_path, "half", half), LocalEngine())
    longer = {**half, "training.max_steps": 4, "training.extend": "rescale"}
    fit(small(tmp_path, "half", longer), LocalEngine())
    weights = [load_file(tmp_path / "runs" / name / "model" / "model.safetensors") for name in ("whole", "half")]
    assert all(torch.equal(weight, weights[1][key]) for key, weight in weights[0].items())


def fails(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("this compiler has a bug\nand says much about it")


@pytest.mark.integration
def test_where_compiling_fails_the_run_is_as_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "compile_model", partial(compile_model, backend=fails))
    plain, failed = (
        small(tmp_path, name, {"training.torch_compile": name == "failed"}) for name in ("plain", "failed")
    )
    fit(plain, LocalEngine())
    fit(failed, LocalEngine())
    said = capsys.readouterr().out
    assert NOT_COMPILED in said
    assert "this compiler has a bug" in said
    assert losses(failed) == losses(plain)
    models = [tmp_path / "runs" / name / "model" / "model.safetensors" for name in ("plain", "failed")]
    assert models[0].read_bytes() == models[1].read_bytes()


def test_the_step_that_is_tried_moves_no_statistics() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}

    class Stuck:
        args = SimpleNamespace(device=torch.device("cpu"))
        compiled = False

        def __init__(self) -> None:
            self.model = model

        def try_step(self) -> None:
            model(torch.randn(4, 2)).sum().backward()

        def pad_labels(self, multiple: int) -> None:
            pass

    trainer: Any = Stuck()
    compile_model(trainer, config(), LocalSession.of_this_process(), backend="eager")
    assert trainer.compiled
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"strategy.name": "deepspeed"}, "strategy.name deepspeed gathers weights"),
        (
            {
                "training.gradient_checkpointing": True,
                "training.training_args": {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
            },
            "use_reentrant",
        ),
    ],
)
def test_what_is_in_the_way_is_named(changes: dict[str, Any], reason: str) -> None:
    found = compiling.obstacle(config(changes))
    assert found is not None
    assert reason in found


def test_labels_are_padded_to_few_lengths_and_to_no_more_than_there_may_be() -> None:
    def items(*sizes: int) -> list[dict[str, Any]]:
        rest = {"clip": np.ones(5, np.int16), "edge_s": 1.0, "masks": None, "share": 0.0}
        return [{**rest, "labels": list(range(1, size + 1))} for size in sizes]

    def widths(collator: Collator) -> list[int]:
        items = [
            {"clip": np.ones(5, np.int16), "labels": [1] * size, "edge_s": 1.0, "masks": None, "share": 0}
            for size in (3, 2)
        ]
        long = [{**items[0], "labels": [1] * 40}]
        return [collator(batch)["labels"].shape[1] for batch in (items, long)]

    plain = Collator(partial(pad_labels, start_id=7, pad_id=0))
    assert widths(plain) == [3, 40]
    few = replace(plain, label_multiple=32, label_tokens=48)
    assert widths(few) == [32, 48]
    batch = few(items(2))
    assert batch["labels"][0].tolist() == [1, 2] + [-100] * 30
    assert batch["decoder_input_ids"][0].tolist() == [7, 1, 2] + [0] * 29


def test_clips_for_features_of_the_cpu_stay_there() -> None:
    clip = np.arange(5, dtype=np.int16)
    items = [{"clip": clip, "labels": [1], "edge_s": 1.0, "masks": None, "share": 0.0}]
    batch = Collator(partial(pad_labels, start_id=7, pad_id=0), on_cpu=True)(items)
    assert [type(samples) for samples in batch["samples"]] == [np.ndarray]
    assert batch["sizes"] == [5]
