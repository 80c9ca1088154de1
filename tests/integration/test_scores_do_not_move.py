"""Scores one model on the same clips on Ray with several numbers of workers and batch sizes: the counts are equal.

Without Ray, and in CI, `tests/contract` has it of each family.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.driver_process import RayHead
from tests.trainers.synthetic import config
from trainers.config.parts.data_part import DemoPart
from trainers.config.schema import TrainConfig
from trainers.data.sources.demo_corpus import make_demo_corpus
from trainers.distributed.ray_connection import connected
from trainers.models.ctc.ctc_decode_part import CtcDecodePart
from trainers.models.families import family_of
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.fit import fit
from trainers.pipeline.on_ray.ray_engine import RayEngine
from trainers.storage import open_storage

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
# Workers and utterances of a batch.
WAYS = tuple((workers, batch) for workers in (1, 2, 3) for batch in (1, 8, 32))
# Of a new output layer's weights, so that another symbol than one wins.
LOUD = 40


def scored(half_trained: TrainConfig, workers: int, batch_size: int) -> dict[str, Any]:
    """test.json of one scoring on Ray."""
    changed = half_trained.model_copy(
        update={
            "scaling": half_trained.scaling.model_copy(update={"num_workers": workers}),
            "training": half_trained.training.model_copy(update={"per_device_eval_batch_size": batch_size}),
        }
    )
    model = f"{half_trained.run.storage_path}/{half_trained.run.name}"
    result = evaluate(changed, RayEngine(), model=model, split="test")
    totals: dict[str, Any] = json.loads(open_storage(result.folder).read_bytes("evaluation/test.json"))
    return totals


@pytest.fixture(scope="module")
def half_trained(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """The config of a finished run whose model is neither right nor lost."""
    folder = tmp_path_factory.mktemp("half")
    demo = DemoPart(train_utterances=1, validation_utterances=12, test_utterances=27, seed=3)
    manifests = make_demo_corpus(folder / "corpus", demo, (3, 7))
    # It learns by heart what it is scored on, which takes seconds, and is interrupted at it.
    shutil.copy(manifests["test"], manifests["train"])
    wanted = config(
        {
            "run.name": "half",
            "run.storage_path": str(folder),
            "data": {split: str(path) for split, path in manifests.items()},
            "model.max_context_s": 4,
            "model.d_model": 64,
            "model.attention_heads": 4,
            "model.encoder_layers": 2,
            "training.max_steps": 220,
            "training.save_steps": 220,
            "training.per_device_train_batch_size": 27,
            "training.learning_rate": 1e-3,
            "training.warmup_steps": 20,
            "decode.max_length": 24,
        }
    )
    fit(wanted, LocalEngine())
    return wanted


@pytest.fixture(scope="module", params=["layer", "group"])
def babbling(request: pytest.FixtureRequest, half_trained: TrainConfig) -> TrainConfig:
    """The config of a CTC model, of a kind of norm, that says something else of each clip: new, with a loud output."""
    part = {"init": "scratch", "family": "ctc", "architecture": "wav2vec2", "feat_extract_norm": request.param}
    model = config({"model": {**part, "d_model": 32, "encoder_layers": 2, "feature_encoder_dim": 16}}).model
    folder = Path(f"{half_trained.run.storage_path}/{request.param}")
    family = family_of(model)
    family.write_description(folder, ["abcdefghijklmnopqrstuvwxyz "], model)
    recognizer = family.load_recognizer(model, folder, seed=1)
    with torch.no_grad():
        recognizer.model.lm_head.weight.mul_(LOUD)
    recognizer.model.save_pretrained(folder)
    family.export_processor(folder)
    run = half_trained.run.model_copy(update={"name": request.param})
    return half_trained.model_copy(update={"model": model, "run": run, "decode": CtcDecodePart()})


def test_all_ways_of_scoring_give_one_result(half_trained: TrainConfig, ray_head: RayHead) -> None:
    with connected(half_trained, ray_head.address):
        results = {(workers, batch): scored(half_trained, workers, batch) for workers, batch in WAYS}
    first = results[1, 1]
    assert first["utterances"] == first["scored"] == 27
    assert 20 < first["wer"] < 80, "the model is too good or too bad for the test to mean anything"
    for way, result in results.items():
        counts = {name: value for name, value in result.items() if name not in ("loss", "full_context")}
        assert counts == {name: first[name] for name in counts}, f"workers, batch = {way}"
        whole = {name: value for name, value in result["full_context"].items() if name != "loss"}
        assert whole == {name: first["full_context"][name] for name in whole}, f"workers, batch = {way}, full context"
        assert result["loss"] == pytest.approx(first["loss"], rel=1e-5)
    lines = Path(f"{half_trained.run.storage_path}/half/evaluation/test.jsonl").read_text().splitlines()
    assert len(lines) == 27
    assert all(len(json.loads(line)["reference"].split()) >= 3 for line in lines)


def test_nor_does_padding_move_a_ctc_model_s(babbling: TrainConfig, ray_head: RayHead) -> None:
    with connected(babbling, ray_head.address):
        results = {(workers, batch): scored(babbling, workers, batch) for workers, batch in WAYS}
    first = results[1, 1]
    assert first["scored"] == 27
    assert first["characters"] > first["character_substitutions"] > 20, "it says too little"
    for way, result in results.items():
        counts = {name: value for name, value in result.items() if name != "loss"}
        assert counts == {name: first[name] for name in counts}, f"workers, batch = {way}"
        assert result["loss"] == pytest.approx(first["loss"], rel=1e-5)
