"""A run that is started again with something changed: it does what was decided, or refuses before it prepares."""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from transformers import WhisperTokenizer

from tests.trainers.pipeline.second_starts import FIELDS, Outcome, second_start
from tests.trainers.synthetic import config, speechlike, write_corpus, write_recording
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError, ResumeError, StoppedError
from trainers.models.ctc.ctc_decode_part import CtcDecodePart
from trainers.models.ctc.ctc_part import CtcPart
from trainers.models.whisper.whisper_part import WhisperPart
from trainers.pipeline import attempt
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
from trainers.training.callbacks import KeepCheckpoints
from trainers.training.trainer import compiling

# Changes that name other data, other hardware or another storage, or fields of another family, are tried elsewhere.
NOT_HERE = {
    *WhisperPart.unsupported,
    *(f"model.{name}" for name in CtcPart.model_fields.keys() - WhisperPart.model_fields.keys()),
    *(f"decode.{name}" for name in CtcDecodePart.model_fields),
    "run.s3_endpoint_url",
    "scaling.num_workers",
    "scaling.use_gpu",
    "scaling.label_selector",
    "data.test",
    "data.train",
    "data.validation",
    "augment.noise_manifest",
    "augment.rir_manifest",
    "hub.push",
    "evaluate.also",
}


def small(tones: Path, folder: Path, changes: Mapping[str, Any] | None = None) -> TrainConfig:
    """Eight steps of a very small model."""
    return config(first(tones, folder) | dict(changes or {}))


def first(tones: Path, folder: Path) -> dict[str, Any]:
    """Its config, flat."""
    return {
        "run.name": "small",
        "run.storage_path": str(folder),
        **{f"data.{split}": str(tones / f"{split}.csv") for split in ("train", "validation", "test")},
        "data.cache_dir": str(folder / "prepared"),
        "training.max_steps": 8,
        "training.save_steps": 4,
        "training.eval_steps": 4,
        "training.logging_steps": 1,
        "training.warmup_steps": 2,
        "training.global_batch_size": 4,
        "training.per_device_train_batch_size": 4,
        "decode.max_length": 8,
    }


def run_folder(wanted: TrainConfig) -> Path:
    """Where the run is."""
    return Path(str(wanted.run.storage_path)) / str(wanted.run.name)


def losses(wanted: TrainConfig) -> list[dict[str, Any]]:
    """Lines of its metrics with a loss."""
    lines = [json.loads(line) for line in (run_folder(wanted) / "metrics.jsonl").read_bytes().splitlines()]
    return [line for line in lines if "loss" in line]


def weights_after(wanted: TrainConfig) -> str:
    """SHA-256 of the weights of its newest checkpoint."""
    newest = Journal(RunFolder.of(wanted)).read().checkpoints[-1]
    return hashlib.sha256(
        (run_folder(wanted) / "checkpoints" / newest.name / "model.safetensors").read_bytes()
    ).hexdigest()


def stop_after(wanted: TrainConfig, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains until the checkpoint of this step is stored, and ends as a killed process would."""
    saved = KeepCheckpoints.on_save

    def save_and_end(keeper: KeepCheckpoints, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        saved(keeper, args, state, control, **kwargs)
        if state.global_step == step:
            assert keeper._uploader is not None
            keeper._uploader.wait()
            raise StoppedError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(KeepCheckpoints, "on_save", save_and_end)
        with pytest.raises(StoppedError):
            fit(wanted, LocalEngine())


@pytest.fixture(scope="module")
def finished_run(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """The config of a run that has finished."""
    wanted = small(tones, tmp_path_factory.mktemp("finished"))
    fit(wanted, LocalEngine())
    return wanted


@pytest.fixture(scope="module")
def stopped_run(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """The config of a run that was killed at step 4."""
    wanted = small(tones, tmp_path_factory.mktemp("stopped"))
    with pytest.MonkeyPatch.context() as patch:
        stop_after(wanted, 4, patch)
    return wanted


def copy_of(run: TrainConfig, folder: Path) -> Path:
    """Copies the run and its prepared data to another storage path, and returns that."""
    return Path(shutil.copytree(str(run.run.storage_path), folder))


class TestLonger:
    def test_by_a_second_warm_up_and_decay(
        self, finished_run: TrainConfig, tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = copy_of(finished_run, tmp_path / "runs")
        with pytest.raises(ResumeError, match=r"training\.extend=rescale"):
            fit(small(tones, folder, {"training.max_steps": 16}), LocalEngine())
        longer = small(tones, folder, {"training.max_steps": 16, "training.extend": "restart"})
        fit(longer, LocalEngine())
        assert "the run ends at max_steps 16, not max_steps 8 (training.extend restart)" in capsys.readouterr().out
        found = losses(longer)
        assert [line["step"] for line in found] == list(range(1, 17))
        assert {line["attempt"] for line in found} == {1, 2}
        rates = [line["learning_rate"] for line in found]
        assert rates[8:] == rates[:8]

    @pytest.mark.long
    def test_an_interrupted_extension_goes_on_as_an_undisturbed_one(
        self, stopped_run: TrainConfig, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = []
        for name in ("undisturbed", "interrupted"):
            folder = copy_of(stopped_run, tmp_path / name)
            longer = small(tones, folder, {"training.max_steps": 12, "training.extend": "rescale"})
            if name == "interrupted":
                stop_after(longer, 8, monkeypatch)
            fit(longer, LocalEngine())
            made.append(([line["learning_rate"] for line in losses(longer)], weights_after(longer)))
        assert made[0] == made[1]


def test_how_often_is_scored_saved_and_logged_changes_at_once(
    stopped_run: TrainConfig, tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of(stopped_run, tmp_path / "runs")
    changes = {"training.save_steps": 2, "training.eval_steps": 1, "training.logging_steps": 2}
    wanted = small(tones, folder, {**changes, "checkpoint.num_to_keep": None})
    fit(wanted, LocalEngine())
    said = capsys.readouterr().out
    for name in changes:
        assert f"changed since the previous attempt: {name}: " in said
    steps = {item.step for item in Journal(RunFolder.of(wanted)).read().checkpoints}
    assert steps == {4, 6, 8}
    lines = [json.loads(line) for line in (run_folder(wanted) / "metrics.jsonl").read_bytes().splitlines()]
    assert [line["step"] for line in lines if line["attempt"] == 2 and "eval_wer" in line] == [5, 6, 7, 8]
    assert [line["step"] for line in lines if line["attempt"] == 2 and "loss" in line] == [6, 8]


def test_a_finished_run_needs_nothing_to_show_its_result_that_only_training_reads(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = tmp_path / "noise.csv"
    noise.write_text(f"path\n{tones / 'train' / '000.wav'}\n")
    mixed = {"augment.noise_manifest": str(noise), "training.max_steps": 4}
    wanted = small(tones, tmp_path, mixed)
    result = fit(wanted, LocalEngine())
    noise.unlink()

    def fail(*_: Any) -> None:
        raise ConfigError("its files are gone")

    monkeypatch.setattr(attempt, "check_decoder", fail)
    assert fit(wanted, LocalEngine()).totals == result.totals
    with pytest.raises(ConfigError, match="its files are gone"):
        fit(small(tones, tmp_path, {**mixed, "training.max_steps": 8, "training.extend": "rescale"}), LocalEngine())


def test_a_vocabulary_that_is_no_file_is_refused_with_the_fix(tones: Path, tmp_path: Path) -> None:
    model = {"init": "scratch", "family": "ctc", "d_model": 16, "encoder_layers": 1, "attention_heads": 2}
    with pytest.raises(ConfigError, match=r"cannot be read: .*; give a JSON object of tokens and their ids"):
        fit(small(tones, tmp_path, {"model": {**model, "vocabulary_file": str(tmp_path)}, "decode": {}}), LocalEngine())


class TestRecordings:
    def test_touched_ones_are_the_same_and_replaced_ones_are_refused_by_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wanted = self._started(tmp_path, monkeypatch)
        recordings = sorted((tmp_path / "speech").rglob("*.wav"))
        for path in recordings:
            os.utime(path, (1, 1))
        own = recordings[0].read_bytes()
        write_recording(recordings[0], speechlike(0.9, seed=77))
        with pytest.raises(ResumeError, match=rf"1 recording has changed since: {recordings[0]}"):
            fit(wanted, LocalEngine())
        recordings[0].write_bytes(own)
        fit(wanted, LocalEngine())
        assert Journal(RunFolder.of(wanted)).read().finished is not None

    def test_those_that_are_mixed_into_clips_are_part_of_the_experiment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sounds = {field: tmp_path / field / "hum.wav" for field in ("augment.noise_manifest", "augment.rir_manifest")}
        manifests = {field: sound.with_name("manifest.csv") for field, sound in sounds.items()}
        for seed, (field, sound) in enumerate(sounds.items()):
            write_recording(sound, speechlike(0.4, seed=seed))
            manifests[field].write_text("path\nhum.wav\n")
        wanted = self._started(tmp_path, monkeypatch, {field: str(path) for field, path in manifests.items()})
        for field, sound in sounds.items():
            own = sound.read_bytes()
            write_recording(sound, speechlike(0.4, seed=6))
            content = rf"{field}: the file has other content "
            with pytest.raises(ResumeError, match=rf"{content}(.|\n)*1 recording has changed since: {sound}"):
                fit(wanted, LocalEngine())
            sound.write_bytes(own)
            manifests[field].write_text("path\nhum.wav\n./hum.wav\n")
            with pytest.raises(ResumeError, match=content):
                fit(wanted, LocalEngine())
            manifests[field].write_text("path\nhum.wav\n")
        fit(wanted, LocalEngine())
        assert Journal(RunFolder.of(wanted)).read().finished is not None

    def test_a_given_vocabulary_is_part_of_the_experiment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokens, vocabulary = ["|", *"abcdefghijklmnopqrstuvwxyz", "[UNK]", "[PAD]"], tmp_path / "vocab.json"
        vocabulary.write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
        sizes = {"d_model": 16, "encoder_layers": 1, "attention_heads": 2}
        model = {"init": "scratch", "family": "ctc", "vocabulary_file": str(vocabulary), **sizes}
        wanted = self._started(tmp_path, monkeypatch, {"model": model, "decode": {}})
        own = vocabulary.read_bytes()
        vocabulary.write_text(json.dumps({token: number for number, token in enumerate(reversed(tokens))}))
        with pytest.raises(ResumeError, match=r"model\.vocabulary_file: the file has other content \("):
            fit(wanted, LocalEngine())
        vocabulary.unlink()
        fit(wanted, LocalEngine())
        vocabulary.write_bytes(own)
        assert Journal(RunFolder.of(wanted)).read().finished is not None, "it has read what is gone"

    def _started(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Mapping[str, Any] | None = None
    ) -> TrainConfig:
        train = write_corpus(tmp_path / "speech", ["one", "two", "three", "four"], durations_s=[0.5] * 4, name="train")
        valid = write_corpus(tmp_path / "speech", ["one", "two"], durations_s=[0.5] * 2, name="valid")
        changes = {"data.train": str(train), "data.validation": str(valid), "data.test": None, **(more or {})}
        wanted = small(tmp_path, tmp_path / "runs", changes)
        stop_after(wanted, 4, monkeypatch)
        return wanted


class TestFromACheckpoint:
    def test_a_new_run_has_its_weights_and_vocabulary_and_an_optimization_of_its_own(
        self, finished_run: TrainConfig, tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        checkpoint = sorted((run_folder(finished_run) / "checkpoints").iterdir())[0]
        texts = ["zebra zero", "quick brown fox", "jumps over", "lazy dog"]
        other = write_corpus(tmp_path, texts, durations_s=[0.6, 0.7, 0.8, 0.9], name="other")
        changes = {"run.resume": f"from:{checkpoint}", "data.train": str(other), "training.learning_rate": 1e-9}
        wanted = small(tones, tmp_path / "runs", {**changes, "model.vocab_size": 310})
        fit(wanted, LocalEngine())
        said = capsys.readouterr().out
        assert f"from the weights of {checkpoint}, with a new optimizer, schedule and step count" in said
        found = losses(wanted)
        assert [line["step"] for line in found] == list(range(1, 9))
        assert max(line["learning_rate"] for line in found) == pytest.approx(1e-9)
        model = run_folder(wanted) / "model"
        vocabularies = [WhisperTokenizer.from_pretrained(folder).get_vocab() for folder in (model, checkpoint)]
        assert vocabularies[0] == vocabularies[1]
        before, after = load_file(checkpoint / "model.safetensors"), load_file(model / "model.safetensors")
        assert all(abs(before[name] - after[name]).max() < 1e-6 for name in before)

    def test_a_run_that_was_killed_goes_on_without_the_checkpoint_it_began_from(
        self, finished_run: TrainConfig, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        best = sorted((run_folder(finished_run) / "checkpoints").iterdir())[-1]
        origin = tmp_path / best.name
        shutil.copytree(best, origin)
        changes = {"run.resume": f"from:{origin}"}
        undisturbed, killed = (small(tones, tmp_path / name, changes) for name in ("undisturbed", "killed"))
        fit(undisturbed, LocalEngine())
        stop_after(killed, 4, monkeypatch)
        shutil.rmtree(origin)
        fit(killed, LocalEngine())
        assert weights_after(killed) == weights_after(undisturbed)

    def test_other_sizes_are_refused_by_name(self, finished_run: TrainConfig, tones: Path, tmp_path: Path) -> None:
        checkpoint = sorted((run_folder(finished_run) / "checkpoints").iterdir())[0]
        wanted = small(tones, tmp_path, {"run.resume": f"from:{checkpoint}", "model.d_model": 32})
        with pytest.raises(ConfigError, match="the checkpoint's model differs from the config's: d_model 16, not 32"):
            fit(wanted, LocalEngine())


class TestEveryFreeField:
    """What `test_continuation` decides about, really started: every free field, some at a time, and one refused."""

    @pytest.mark.parametrize(
        ("outcome", "some"),
        [
            *((Outcome.EXACT, slice(part, None, 3)) for part in range(3)),
            *(pytest.param(Outcome.ROUNDED, slice(part, None, 2), marks=pytest.mark.long) for part in range(2)),
        ],
    )
    def test_takes_effect_and_is_printed(
        self,
        outcome: Outcome,
        some: slice,
        stopped_run: TrainConfig,
        finished_run: TrainConfig,
        tones: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # The graphs of torch's compiler, without its kernels, which take a minute to make.
        monkeypatch.setattr(compiling, "compile_model", partial(compiling.compile_model, backend="aot_eager"))
        folder = copy_of(stopped_run, tmp_path / "runs")
        names = sorted(name for name, (found, _) in FIELDS.items() if found is outcome and name not in NOT_HERE)
        base = first(tones, folder)
        changes = {name: _another_value(name, base) for name in names[some]}
        if "training.save_steps" in changes:
            # Of which it must be a multiple.
            changes["training.eval_steps"] = _another_value("training.eval_steps", base)
        fit(config(base | changes), LocalEngine())
        output = capsys.readouterr().out
        assert all(f"changed since the previous attempt: {name}: " in output for name in changes)
        assert "resuming from checkpoint-4-" in output
        if outcome is Outcome.EXACT:
            assert weights_after(config(base | changes)) == weights_after(finished_run)

    def test_or_is_refused_before_anything_is_prepared(
        self, stopped_run: TrainConfig, tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = copy_of(stopped_run, tmp_path / "runs")
        names = sorted(name for name, (found, _) in FIELDS.items() if found is Outcome.REFUSED and name not in NOT_HERE)
        second = second_start(random.Random(0), first(tones, folder), names)
        attempts = run_folder(second.config) / "attempts"
        before = {path.name for path in attempts.iterdir()}
        with pytest.raises(ResumeError):
            fit(second.config, LocalEngine())
        assert "prepare" not in capsys.readouterr().out
        assert {path.name for path in attempts.iterdir()} == before


def _another_value(name: str, base: Mapping[str, Any]) -> Any:
    """A value of this field that the first start did not have."""
    return next(value for value in FIELDS[name][1] if base.get(name) != value)
