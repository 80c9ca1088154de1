"""Whole runs of a pretrained Whisper at a shorter context than its own, without Ray."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration, pipeline, set_seed

from tests.integration.test_second_starts import first, losses, run_folder, stop_after
from tests.metrics_lines import metrics_of
from tests.trainers.synthetic import config, speechlike
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError, DamagedError, ResumeError
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.fit import fit
from trainers.run_folder.attempt_status import scores_of
from trainers.run_folder.checkpoints import ORIGINAL, TRAINING_STATE
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder

CONTEXT_S = 3.0
MATCHING = {"model.full_context_matching": 3.0, "model.full_context_matching_fraction": 0.5}
# Whatever else draws, or adds in another order.
EVERYTHING = {
    "model.dropout": 0.1,
    "augment.speed_range": [0.8, 1.25],
    "augment.time_masks": 2,
    "training.gradient_checkpointing": True,
    "training.gradient_accumulation_steps": 2,
    "training.full_context_fraction": 0.5,
}
LORA = {"adapt.method": "lora", "adapt.r": 4, "adapt.dropout": 0.1}


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A very small Whisper with a context of three seconds."""
    folder = tmp_path_factory.mktemp("whisper")
    model: Any = config({"model.d_model": 32, "model.encoder_layers": 2}).model
    WhisperFamily().write_description(folder, ["red green blue left right"], model)
    set_seed(5)
    network = WhisperForConditionalGeneration(WhisperConfig.from_pretrained(folder))
    network.generation_config = GenerationConfig.from_pretrained(folder)
    network.save_pretrained(folder)
    return folder


def short(tones: Path, folder: Path, whisper: Path, changes: Mapping[str, Any]) -> TrainConfig:
    """Eight steps at a context of one second."""
    weights = {"init": "pretrained", "name_or_path": str(whisper), "language": "English", "max_context_s": 1}
    return config(first(tones, folder) | {"model": weights, "training.learning_rate": 1e-2} | dict(changes))


@pytest.fixture(scope="module")
def finished(tones: Path, whisper: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """The config of a finished run."""
    wanted = short(tones, tmp_path_factory.mktemp("short"), whisper, MATCHING)
    fit(wanted, LocalEngine())
    return wanted


class TestScores:
    def test_each_stands_beside_that_of_the_whole_context(self, finished: TrainConfig) -> None:
        folder = run_folder(finished)
        scored = [line for line in metrics_of(RunFolder.of(finished)) if "eval_wer" in line]
        assert [line["step"] for line in scored] == [4, 8]
        for line in scored:
            assert {f"eval_full_context_{name}" for name in ("wer", "cer", "ser", "loss")} < set(line)
            assert line["eval_full_context_loss"] != line["eval_loss"]
        for checkpoint in Journal(RunFolder.of(finished)).read().checkpoints:
            assert "eval_full_context_wer" in checkpoint.metrics
        result = json.loads((folder / "result.json").read_text())
        assert "eval_full_context_wer" in result["validation"]
        for split in ("validation", "test"):
            totals = json.loads((folder / "evaluation" / f"{split}.json").read_text())
            assert totals["full_context"]["context_s"] == CONTEXT_S
            assert totals["full_context"]["scored"] == totals["scored"] == 6

    def test_the_initial_weights_are_scored_at_the_whole_context_alone(
        self, finished: TrainConfig, tones: Path, whisper: Path, tmp_path: Path
    ) -> None:
        folder = run_folder(finished)
        weights = {"init": "pretrained", "name_or_path": str(whisper), "language": "English"}
        elsewhere = config(first(tones, tmp_path) | {"model": weights})
        for split in ("validation", "test"):
            expected = evaluate(elsewhere, LocalEngine(), model=str(whisper), split=split).totals
            totals = json.loads((folder / "base/evaluation" / f"{split}.json").read_text())
            assert totals.pop("full_context") == {
                "context_s": CONTEXT_S,
                **{name: value for name, value in expected.items() if name not in totals},
            }
            assert totals == {"split": split, "language": "English"}
            if split == "validation":
                step_0, *_ = metrics_of(RunFolder.of(finished))
                assert step_0["eval_full_context_wer"] == expected["wer"]
        result = json.loads((folder / "result.json").read_text())
        assert result["verdicts"]["test"]["base"] == expected["wer"]
        state = scores_of(Journal(RunFolder.of(finished)).read())
        assert state["base_test_full_context_wer"] == expected["wer"] and "base_test_wer" not in state

    def test_interpolations_are_ranked_by_theirs_at_the_whole_context(
        self, tones: Path, whisper: Path, tmp_path: Path
    ) -> None:
        changes = {"training.full_context_eval": False, "checkpoint.interpolate": [0.5]}
        wanted = short(tones, tmp_path, whisper, changes)
        fit(wanted, LocalEngine())
        result = json.loads((run_folder(wanted) / "result.json").read_text())
        weights, rates = result["weights"], [each["eval_full_context_wer"] for each in result["weights"]["candidates"]]
        assert weights["ranks"] == "eval_full_context_wer" and len(rates) == 2
        assert result["validation"]["eval_full_context_wer"] == min(rates)

    def test_of_the_log_too(self, finished: TrainConfig, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        elsewhere = finished.model_copy(
            update={"run": finished.run.model_copy(update={"storage_path": str(tmp_path), "name": "again"})}
        )
        result = fit(elsewhere, LocalEngine())
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ") and "WER" in line]
        assert lines and all("% at the full context" in line for line in lines)
        assert re.search(r" · at 3 s: WER [\d.]+% → [\d.]+% \(base → tuned\)", result.headline)

    def test_of_the_model_card_and_of_evaluate(self, finished: TrainConfig, tmp_path: Path) -> None:
        card = (run_folder(finished) / "model" / "README.md").read_text()
        assert "| validation, at the full context | " in card
        assert "| test, at the full context (3 s) | " in card
        elsewhere = finished.model_copy(update={"run": finished.run.model_copy(update={"storage_path": str(tmp_path)})})
        result = evaluate(elsewhere, LocalEngine(), model=str(run_folder(finished)), split="test")
        assert " · at 3 s: WER " in result.headline
        assert result.totals == json.loads((run_folder(finished) / "evaluation" / "test.json").read_text())

    def test_the_validation_score_is_that_of_evaluate(self, finished: TrainConfig, tmp_path: Path) -> None:
        elsewhere = finished.model_copy(update={"run": finished.run.model_copy(update={"storage_path": str(tmp_path)})})
        totals = evaluate(elsewhere, LocalEngine(), model=str(run_folder(finished)), split="validation").totals
        best = json.loads((run_folder(finished) / "result.json").read_text())["validation"]
        assert (totals["wer"], totals["full_context"]["wer"]) == (best["eval_wer"], best["eval_full_context_wer"])


def test_the_model_stays_a_whisper_of_thirty_seconds(tones: Path, hub_whisper: Path, tmp_path: Path) -> None:
    wanted = short(
        tones,
        tmp_path,
        hub_whisper,
        {**MATCHING, "training.max_steps": 2, "training.save_steps": 2, "training.eval_steps": 2}
        | {"decode.max_length": 4, "training.warmup_steps": 0},
    )
    assert " · at 30 s: WER " in fit(wanted, LocalEngine()).headline
    model, before = run_folder(wanted) / "model", json.loads((hub_whisper / "config.json").read_text())
    after = json.loads((model / "config.json").read_text())
    assert after["max_source_positions"] == before["max_source_positions"] == 1500
    assert json.loads((model / "preprocessor_config.json").read_text())["chunk_length"] == 30
    assert not {ORIGINAL, "base.json"} & {path.name for path in model.iterdir()}
    weights = load_file(model / "model.safetensors")
    assert weights["model.encoder.embed_positions.weight"].shape[0] == 1500
    assert WhisperFamily().open_exported(model).limits.context_s == 30.0
    recognize: Any = pipeline("automatic-speech-recognition", model=str(model))
    samples = speechlike(29.0).astype(np.float32) / 32768
    heard = recognize({"raw": samples, "sampling_rate": 16_000}, generate_kwargs={"max_new_tokens": 4})
    assert isinstance(heard["text"], str)


class TestMatching:
    def test_it_is_logged_apart_from_the_loss(
        self, finished: TrainConfig, tones: Path, whisper: Path, tmp_path: Path
    ) -> None:
        plain = short(tones, tmp_path, whisper, {})
        fit(plain, LocalEngine())
        matched, unmatched = losses(finished), losses(plain)
        assert matched[0]["full_context_matching"] == pytest.approx(0, abs=1e-9), "nothing is trained yet"
        assert all(line["full_context_matching"] > 0 for line in matched[2:])
        assert all("full_context_matching" not in line for line in unmatched)
        assert matched[0]["loss"] == pytest.approx(unmatched[0]["loss"], rel=1e-6)

    def test_it_keeps_the_encoder_near_the_original(self, tones: Path, whisper: Path, tmp_path: Path) -> None:
        weak, strong = (
            short(tones, tmp_path / name, whisper, {**MATCHING, "model.full_context_matching": weight})
            for name, weight in (("weak", 1e-9), ("strong", 30.0))
        )
        for wanted in (weak, strong):
            fit(wanted, LocalEngine())
        last = [losses(wanted)[-1]["full_context_matching"] for wanted in (weak, strong)]
        assert last[1] < last[0] / 2

    @pytest.mark.parametrize(
        ("begins", "changes"),
        [
            ("pretrained", LORA),
            pytest.param("from", {}, marks=pytest.mark.long),
            pytest.param("pretrained", {}, marks=pytest.mark.long),
            pytest.param("from", LORA, marks=pytest.mark.long),
        ],
    )
    def test_a_killed_run_ends_with_the_same_weights(
        self,
        tones: Path,
        whisper: Path,
        finished: TrainConfig,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        begins: str,
        changes: dict[str, Any],
    ) -> None:
        if begins == "from":
            source = tmp_path / "source"
            shutil.copytree(run_folder(finished) / "checkpoints", source / "checkpoints")
            name = Journal(RunFolder.of(finished)).read().checkpoints[-1].name
            changes = {**changes, "run.resume": f"from:{source}/checkpoints/{name}"}
        calm, killed = (
            short(tones, tmp_path / name, whisper, {**MATCHING, **EVERYTHING, **changes}) for name in ("calm", "killed")
        )
        fit(calm, LocalEngine())
        stop_after(killed, 4, monkeypatch)
        if begins == "from":
            shutil.rmtree(source)
        fit(killed, LocalEngine())
        weights = [run_folder(wanted) / "model" / "model.safetensors" for wanted in (calm, killed)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
        lines = [
            [(line["step"], line["loss"], line["full_context_matching"]) for line in losses(wanted)]
            for wanted in (calm, killed)
        ]
        assert lines[0] == lines[1]

    def test_a_checkpoint_names_the_original_and_the_model_does_not(self, finished: TrainConfig, whisper: Path) -> None:
        checkpoint = Journal(RunFolder.of(finished)).read().checkpoints[-1]
        assert ORIGINAL in checkpoint.files and ORIGINAL in TRAINING_STATE
        folder = run_folder(finished) / "checkpoints" / checkpoint.name
        assert json.loads((folder / ORIGINAL).read_text())["name_or_path"] == str(whisper)
        weights = load_file(folder / "model.safetensors")
        assert not [name for name in weights if "original" in name]
        assert not (run_folder(finished) / "model" / ORIGINAL).exists()

    def test_another_original_is_refused_on_resume(
        self, tones: Path, whisper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copied = tmp_path / "copied"
        shutil.copytree(whisper, copied)
        wanted = short(tones, tmp_path, copied, MATCHING)
        stop_after(wanted, 4, monkeypatch)
        network = WhisperForConditionalGeneration.from_pretrained(copied)
        network.get_encoder().layer_norm.bias.data.add_(1.0)
        network.save_pretrained(copied)
        with pytest.raises(DamagedError, match="has other weights than"):
            fit(wanted, LocalEngine())

    def test_a_begun_run_keeps_its_weight(self, finished: TrainConfig) -> None:
        model = finished.model.model_copy(update={"full_context_matching": 4.0})
        with pytest.raises(ResumeError, match=r"model\.full_context_matching: 3\.0 → 4\.0"):
            fit(finished.model_copy(update={"model": model}), LocalEngine())

    def test_a_context_that_is_no_shorter_is_refused_before_training(
        self, tones: Path, whisper: Path, tmp_path: Path
    ) -> None:
        wanted = short(tones, tmp_path, whisper, {**MATCHING, "model.max_context_s": 3})
        with pytest.raises(ConfigError, match="is not shorter than the model's own context of 3 s"):
            fit(wanted, LocalEngine())
