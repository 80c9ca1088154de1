"""Adaptation of a pretrained Whisper by the recipe, and of CTC models."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import WhisperForConditionalGeneration, pipeline

from tests.integration.test_adaptation import LORA, differing, newest
from tests.integration.test_second_starts import first, run_folder, stop_after
from tests.trainers.synthetic import config, speechlike
from trainers.config.loader import build_config, read_yaml
from trainers.config.overrides import apply_overrides
from trainers.config.schema import TrainConfig
from trainers.models.families import family_of
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.fit import fit

RECIPE = Path(__file__).parents[2] / "jobs" / "specs" / "whisper_lora.yaml"


@pytest.fixture(scope="module")
def tuned(tones: Path, hub_whisper: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """The config of a finished run of the recipe, with a few steps of a tiny model."""
    changes = {
        "run.storage_path": str(tmp_path_factory.mktemp("tuned")),
        **{f"data.{split}": str(tones / f"{split}.csv") for split in ("train", "validation", "test")},
        "model.name_or_path": str(hub_whisper),
        "model.max_context_s": 2,
        "scaling": {},
        **{f"training.{name}": 2 for name in ("max_steps", "eval_steps", "save_steps", "warmup_steps")},
        "training.global_batch_size": 4,
        "decode.max_length": 4,
        "training.bf16": False,
        "training.training_args": {},
    }
    overrides = [(tuple(name.split(".")), value) for name, value in changes.items()]
    wanted = build_config(apply_overrides(read_yaml(RECIPE), overrides), origin=RECIPE.name, environment={})
    fit(wanted, LocalEngine())
    return wanted


class TestPretrained:
    def test_the_checkpoint_names_its_base_and_stores_nothing_of_it(
        self, tuned: TrainConfig, hub_whisper: Path
    ) -> None:
        checkpoint = newest(tuned)
        base = json.loads((checkpoint / "base.json").read_text())
        assert (base["name_or_path"], base["folder"]) == (str(hub_whisper), None)
        assert json.loads((checkpoint / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
            hub_whisper
        )
        assert not list(checkpoint.parent.glob("base-*"))
        assert not list(checkpoint.glob("model*.safetensors"))

    def test_the_merged_model_opens_with_pipeline(self, tuned: TrainConfig) -> None:
        model = run_folder(tuned) / "model"
        WhisperForConditionalGeneration.from_pretrained(model)
        recognize: Any = pipeline("automatic-speech-recognition", model=str(model))
        samples = speechlike(0.8).astype(np.float32) / 32768
        heard = recognize({"raw": samples, "sampling_rate": 16_000}, generate_kwargs={"max_new_tokens": 4})
        assert isinstance(heard["text"], str)

    def test_the_merged_model_and_a_checkpoint_open_with_evaluate(self, tuned: TrainConfig, tmp_path: Path) -> None:
        elsewhere = tuned.model_copy(update={"run": tuned.run.model_copy(update={"storage_path": str(tmp_path)})})
        best = json.loads((run_folder(tuned) / "result.json").read_text())
        checkpoint = run_folder(tuned) / "checkpoints" / best["best_checkpoint"]
        for model in (run_folder(tuned) / "model", checkpoint):
            assert (
                evaluate(elsewhere, LocalEngine(), model=str(model), split="test").totals["wer"] == best["test"]["wer"]
            )

    def test_peft_opens_the_adapter_on_its_base(self, tuned: TrainConfig) -> None:
        model = run_folder(tuned) / "model"
        base = WhisperForConditionalGeneration.from_pretrained(
            json.loads((model / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"]
        )
        merged = PeftModel.from_pretrained(base, str(model / "adapter")).merge_and_unload().state_dict()
        stored = load_file(model / "model.safetensors")
        assert not differing(stored, {name: merged[name] for name in stored})


def test_a_whisper_of_bfloat16_is_adapted_killed_and_resumed(
    tones: Path, hub_whisper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"name_or_path": str(hub_whisper), "language": "English", "max_context_s": 2, "dtype": "bfloat16"}
    calm, killed = (config(first(tones, tmp_path / name) | {"model": model} | LORA) for name in ("calm", "killed"))
    fit(calm, LocalEngine())
    stop_after(killed, 4, monkeypatch)
    fit(killed, LocalEngine())
    for name in ("adapter_model.safetensors", "optimizer.pt", "validation.jsonl"):
        assert (newest(calm) / name).read_bytes() == (newest(killed) / name).read_bytes(), name
    adapter = load_file(newest(calm) / "adapter_model.safetensors")
    assert {weight.dtype for weight in adapter.values()} == {torch.float32}
    exported = run_folder(calm) / "model"
    assert WhisperForConditionalGeneration.from_pretrained(exported).dtype == torch.bfloat16
    best = json.loads((run_folder(calm) / "result.json").read_text())
    elsewhere = calm.model_copy(update={"run": calm.run.model_copy(update={"storage_path": str(tmp_path / "new")})})
    totals = evaluate(elsewhere, LocalEngine(), model=str(exported), split="test").totals
    assert totals == {**best["test"], "split": "test"}


CTC = {"init": "scratch", "family": "ctc", "d_model": 16, "encoder_layers": 2, "attention_heads": 2, "max_context_s": 3}


def ctc(tones: Path, folder: Path, changes: Mapping[str, Any]) -> TrainConfig:
    """Eight steps of a very small CTC model."""
    model = {**CTC, "feature_encoder_dim": 8, "architecture": "wav2vec2"}
    return config(first(tones, folder) | {"model": model, "decode": {}, "training.learning_rate": 1e-2} | dict(changes))


class TestCTC:
    @pytest.mark.long
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_new_head_on_pretrained_weights_goes_with_the_adapter(
        self, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
    ) -> None:
        base = tmp_path / "base"
        first_run = ctc(tones, tmp_path / "first", {})
        description = tmp_path / "description"
        family_of(first_run.model).write_description(description, ["a b c"], first_run.model)
        recognizer = family_of(first_run.model).load_recognizer(first_run.model, description, 3)
        recognizer.model.save_pretrained(base)
        recognizer.processor.feature_extractor.save_pretrained(base)
        model = {"name_or_path": str(base), "vocabulary": "characters", "max_context_s": 3, "dtype": dtype}
        calm, killed = (ctc(tones, tmp_path / name, {"model": model} | LORA) for name in ("calm", "killed"))
        fit(calm, LocalEngine())
        stop_after(killed, 4, monkeypatch)
        fit(killed, LocalEngine())
        assert "lm_head" in json.loads((newest(calm) / "adapter_config.json").read_text())["modules_to_save"]
        for name in ("adapter_model.safetensors", "optimizer.pt", "validation.jsonl"):
            assert (newest(calm) / name).read_bytes() == (newest(killed) / name).read_bytes(), name
        weights = load_file(run_folder(calm) / "model" / "model.safetensors").values()
        assert {str(weight.dtype) for weight in weights} == {f"torch.{dtype}"}
        best = json.loads((run_folder(calm) / "result.json").read_text())
        elsewhere = calm.model_copy(update={"run": calm.run.model_copy(update={"storage_path": str(tmp_path / "new")})})
        for folder in (run_folder(calm), run_folder(calm) / "checkpoints" / best["best_checkpoint"]):
            totals = evaluate(elsewhere, LocalEngine(), model=str(folder), split="test").totals
            assert totals == {**best["test"], "split": "test"}
        recognize: Any = pipeline("automatic-speech-recognition", model=str(run_folder(calm) / "model"))
        samples = speechlike(0.8).astype(np.float32) / 32768
        assert isinstance(recognize({"raw": samples, "sampling_rate": 16_000})["text"], str)
