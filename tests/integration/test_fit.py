"""Whole runs without Ray: what a run folder holds, and what may be continued."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from transformers import TrainerCallback, WhisperForConditionalGeneration, WhisperTokenizer, pipeline
from typer.testing import CliRunner

from jobs.cli.app import app
from tests.hub import Hub
from tests.trainers.synthetic import config, speechlike, write_corpus
from tests.trainers.training.trackers.event_files import points_of
from trainers.config.loader import to_yaml
from trainers.config.parts.run_part import HubPart
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions
from trainers.errors import ConfigError, DataError, DivergedError, FencedError, ResumeError
from trainers.main import main
from trainers.models.sources.run_models import find_model
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.fit import fit
from trainers.training.loop import build as worker_build
from trainers.training.worker import finish as worker_finish

FILES = """
config.yaml overrides.yaml environment.json experiment.json metrics.jsonl quarantine.jsonl result.json report.html
evaluation/test.json evaluation/test.jsonl evaluation/validation.json evaluation/validation.jsonl
model/model.safetensors model/README.md attempts/1/attempt.json journal/00000001.json
""".split()  # noqa: SIM905
TOTALS = (
    "utterances scored words insertions deletions substitutions wer characters cer sentence_errors ser".split()  # noqa: SIM905
)


METRIC = {"scoring.metrics": {"deletions": "trainers.scoring.metrics:ErrorRates"}}


def small(tones: Path, folder: Path, changes: Mapping[str, Any] | None = None) -> TrainConfig:
    """Twelve steps of a very small model."""
    return config(
        {
            "run.name": "small",
            "run.storage_path": str(folder),
            "data": {split: str(tones / f"{split}.csv") for split in ("train", "validation", "test")},
            "training.max_steps": 12,
            "training.save_steps": 4,
            "training.logging_steps": 2,
            "training.per_device_train_batch_size": 8,
            "decode.max_length": 8,
            **(changes or {}),
        }
    )


@pytest.fixture(scope="module")
def finished_run(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """The config of a run that has finished."""
    changes = METRIC | {"data.slice_columns": ["path"]}
    wanted = small(tones, tmp_path_factory.mktemp("runs"), changes)
    fit(wanted, LocalEngine(), overrides=["training.max_steps=12"])
    return wanted


def run_folder(wanted: TrainConfig) -> Path:
    """Where the run is."""
    return Path(str(wanted.run.storage_path)) / str(wanted.run.name)


def test_a_run_folder_holds_what_the_readme_says(finished_run: TrainConfig) -> None:
    folder = run_folder(finished_run)
    for name in FILES:
        assert (folder / name).is_file(), name
    assert not list(folder.rglob("training_args.bin")) and not list(folder.rglob("*.pkl"))
    test = json.loads((folder / "evaluation/test.json").read_text())
    wanted = set(TOTALS)
    assert wanted < set(test)
    assert test["utterances"] == test["scored"] == 6
    ((step, wer),) = points_of(folder / "tensorboard", "test/wer")
    assert step == 12 and wer == pytest.approx(test["wer"])
    lines = [json.loads(line) for line in (folder / "evaluation/test.jsonl").read_bytes().splitlines()]
    assert {"id", "reference", "hypothesis", "insertions", "deletions", "substitutions", "duration_s"} < set(lines[0])
    assert all(line["avg_logprob"] < 0 for line in lines)
    assert sum(line["substitutions"] for line in lines) == test["substitutions"]
    made = {"normalizer": "basic", "normalizer_version": "1"}
    result, validation = (
        json.loads((folder / name).read_text()) for name in ("result.json", "evaluation/validation.json")
    )
    assert all(made.items() <= score.items() for score in (test, validation, result, result["test"]))
    # A metric of the recipe's sees each utterance once, as the error rates do.
    assert all(score["metrics"] == {"deletions": score["deletions"]} for score in (test, validation))
    scored = [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines() if b"eval_wer" in line]
    logged = [
        json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines() if b"clips_per_s" in line
    ]
    losses: list[Any] = [(line["step"], pytest.approx(line["loss"])) for line in logged]
    assert points_of(folder / "tensorboard", "train/loss") == losses
    assert logged and all(0 <= line["padding"] < 1 for line in logged)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Padding, percent of the input" in page and "<h3>By path</h3>" in page
    assert validation["deletions"] in [line["eval_deletions"] for line in scored]
    assert all(line["eval_deletions"] >= 0 for line in scored)


def test_the_model_opens_with_from_pretrained_and_pipeline(finished_run: TrainConfig) -> None:
    model = run_folder(finished_run) / "model"
    WhisperForConditionalGeneration.from_pretrained(model)
    recognize: Any = pipeline("automatic-speech-recognition", model=str(model))
    samples = speechlike(0.8).astype(np.float32) / 32768
    assert isinstance(
        recognize({"raw": samples, "sampling_rate": 16_000}, generate_kwargs={"max_new_tokens": 8})["text"], str
    )


def test_a_finished_run_that_is_to_be_pushed_now_is_pushed_once_and_opens_from_there(
    finished_run: TrainConfig, taking_hub: Hub, tmp_path: Path
) -> None:
    shutil.copytree(str(finished_run.run.storage_path), tmp_path / "runs")
    run = finished_run.run.model_copy(update={"storage_path": str(tmp_path / "runs")})
    wanted = finished_run.model_copy(update={"run": run, "hub": HubPart(push=True)})
    fit(wanted, LocalEngine())
    for name, content in taking_hub.repositories["ana/small"].files.items():
        (tmp_path / "pushed").mkdir(exist_ok=True)
        (tmp_path / "pushed" / name).write_bytes(content)
    WhisperForConditionalGeneration.from_pretrained(tmp_path / "pushed")
    card = (tmp_path / "pushed" / "README.md").read_text(encoding="utf-8")
    assert 'pipeline("automatic-speech-recognition", model="ana/small")' in card
    assert re.search(r"\| test \(6 of 6 utterances\) \| \d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\) \|", card)
    keys = json.loads((run_folder(wanted) / "environment.json").read_text())["data"]
    assert all(f"| `{key}` |" in card for key in keys.values())
    asked = len(taking_hub.requests)
    fit(wanted, LocalEngine())
    assert len(taking_hub.requests) == asked


def test_the_model_is_written_for_older_readers_too(finished_run: TrainConfig) -> None:
    model = run_folder(finished_run) / "model"
    names = {path.name for path in model.iterdir()}
    assert {"preprocessor_config.json", "vocab.json", "merges.txt", "added_tokens.json"} < names
    assert "processor_config.json" not in names, "transformers 4 cannot open one with an extractor in it"
    vocabulary, added = (json.loads((model / name).read_text()) for name in ("vocab.json", "added_tokens.json"))
    tokenizer = WhisperTokenizer.from_pretrained(model)
    assert {**vocabulary, **added} == tokenizer.get_vocab()
    merges = json.loads((model / "tokenizer.json").read_text())["model"]["merges"]
    assert merges == (model / "merges.txt").read_text().splitlines()[1:]
    special = json.loads((model / "tokenizer_config.json").read_text())["additional_special_tokens"]
    assert "<|sr|>" in special and "<|0.00|>" not in special


def test_the_best_and_the_newest_checkpoints_are_kept_and_training_is_freed_before_the_best_is_loaded(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[weakref.ref[Any]] = []

    def build(*given: Any) -> Any:
        loop = worker_build(*given)
        built.extend(weakref.ref(item) for item in (loop.recognizer.model, loop.trainer))
        return loop

    def finish(rank: Any, weights: Any) -> None:
        assert [item() for item in built] == [None, None]
        worker_finish(rank, weights)

    monkeypatch.setattr("trainers.training.worker.build", build)
    monkeypatch.setattr("trainers.training.worker.finish", finish)
    wanted = small(tones, tmp_path, {"checkpoint.num_to_keep": 1, "training.save_steps": 2})
    fit(wanted, LocalEngine())
    assert len(built) == 2
    names = [path.name for path in (run_folder(wanted) / "checkpoints").iterdir()]
    assert 1 <= len(names) <= 2
    assert any(name.startswith("checkpoint-12-") for name in names)


class SeesPage(TrainerCallback):
    """Goes on with the last steps when the page shows the score of a checkpoint."""

    def __init__(self, page: Path):
        self._page = page

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        end_s = time.monotonic() + 60
        while state.global_step == 8 and not (self._page.is_file() and "Score on validation" in self._page.read_text()):
            assert time.monotonic() < end_s
            time.sleep(0.05)


@pytest.mark.long
def test_a_run_that_trains_has_a_page_after_a_validation(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = small(tones, tmp_path)

    def build(*given: Any) -> Any:
        loop = worker_build(*given)
        loop.trainer.add_callback(SeesPage(run_folder(wanted) / "report.html"))
        return loop

    monkeypatch.setattr("trainers.training.worker.build", build)
    monkeypatch.setattr("trainers.scoring.report.live_page.PAUSE_S", 0.0)
    fit(wanted, LocalEngine())
    assert "Score on test" in (run_folder(wanted) / "report.html").read_text(encoding="utf-8")


def test_a_finished_run_says_its_score_again_and_does_nothing(
    finished_run: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in (run_folder(finished_run) / "attempts").iterdir())
    result = fit(finished_run, LocalEngine())
    assert "has finished" in capsys.readouterr().out
    assert "on test (6 utterances)" in result.headline
    assert sorted(path.name for path in (run_folder(finished_run) / "attempts").iterdir()) == before


def test_a_finished_run_that_was_not_shown_whole_is_shown_whole_when_asked_again(finished_run: TrainConfig) -> None:
    folder = run_folder(finished_run)
    before = {path: path.read_bytes() for path in (folder / "result.json", folder / "model/model.safetensors")}
    for path in (*before, folder / "report.html"):
        path.unlink()
    fit(finished_run, LocalEngine())
    assert {path: path.read_bytes() for path in before} == before
    assert (folder / "report.html").is_file()


def test_an_attempt_that_another_has_passed_is_refused_before_it_prepares(
    finished_run: TrainConfig, tones: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = finished_run.data.model_copy(update={"train": str(tones / "nowhere.csv")})
    with pytest.raises(FencedError, match="so attempt 1 ends here"):
        fit(finished_run.model_copy(update={"data": elsewhere}), LocalEngine(), attempt=1)
    assert capsys.readouterr().out == ""


def test_a_run_s_model_is_the_one_that_its_journal_names(finished_run: TrainConfig) -> None:
    folder = run_folder(finished_run)
    assert find_model(str(folder), StorageOptions()).startswith(f"{folder}/attempts/1/outputs-")
    assert find_model(f"{folder}/model", StorageOptions()) == f"{folder}/model"


def test_another_experiment_under_the_same_name_is_refused_with_the_difference(finished_run: TrainConfig) -> None:
    changed = finished_run.model_copy(
        update={"training": finished_run.training.model_copy(update={"learning_rate": 5e-4})}
    )
    with pytest.raises(ResumeError, match=r"training.learning_rate: 1e-05 → 0.0005"):
        fit(changed, LocalEngine())


def test_resume_never_refuses_a_run_with_checkpoints(finished_run: TrainConfig) -> None:
    never = finished_run.model_copy(update={"run": finished_run.run.model_copy(update={"resume": "never"})})
    with pytest.raises(ResumeError, match=r"run\.name"):
        fit(never, LocalEngine())


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    finished_run: TrainConfig, tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(str(finished_run.run.storage_path), runs)
    newest = max((runs / "small/checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    longer = {"training.max_steps": 16, "training.extend": "rescale"}
    fit(small(tones, runs, METRIC | longer), LocalEngine())
    said = capsys.readouterr().out
    assert "differs from its SHA-256" in said
    assert "resuming from checkpoint-8-" in said


def test_evaluate_writes_beside_the_run_and_not_over_it(finished_run: TrainConfig) -> None:
    before = (run_folder(finished_run) / "evaluation/test.json").read_bytes()
    result = evaluate(finished_run, LocalEngine(), model=str(run_folder(finished_run)), split="test")
    assert (run_folder(finished_run) / "evaluation/test.json").read_bytes() == before
    ours, theirs = json.loads(before), json.loads((Path(result.folder) / "evaluation/test.json").read_text())
    assert theirs["wer"] == ours["wer"]


def test_evaluate_gives_the_n_best_of_a_beam_search_and_no_more_than_there_are_beams(
    finished_run: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(run_folder(finished_run))
    recipe = ["--config", f"{model}/config.yaml", "--no-ray", "--verb", "evaluate", "--model", model]
    assert main([*recipe, "--nbest", "2"]) == 2
    assert "raise the beams (--set decode.num_beams=2)" in capsys.readouterr().err
    assert main([*recipe, "--nbest", "2", "--set", "decode.num_beams=3"]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1].rpartition(" · ")[2])
    for line in map(json.loads, (folder / "evaluation/test.jsonl").read_bytes().splitlines()):
        assert [set(item) for item in line["nbest"]] == [{"text", "avg_logprob"}] * 2
        assert line["nbest"][0] == {"text": line["hypothesis"], "avg_logprob": pytest.approx(line["avg_logprob"])}
        assert line["avg_logprob"] < 0


def test_weights_of_a_folder_are_tuned_on_a_data_set_of_parquet_files(
    finished_run: TrainConfig, tones: Path, tmp_path: Path
) -> None:
    for split in ("train", "validation", "test"):
        rows = [line.split(",") for line in (tones / f"{split}.csv").read_text().splitlines()[1:]]
        table = datasets.Dataset.from_dict(
            {"audio": [str(tones / path) for path, _ in rows], "sentence": [text for _, text in rows]}
        ).cast_column("audio", datasets.Audio(decode=False))
        embedded = table.map(lambda row: {"audio": {"bytes": Path(row["audio"]["path"]).read_bytes(), "path": None}})
        embedded.to_parquet(tmp_path / "set" / f"{split}-00000.parquet")
    data = {
        "dataset": {"name": str(tmp_path / "set")},
        "audio_column_name": "audio",
        "text_column_name": "sentence",
    }
    model = {"init": "pretrained", "name_or_path": str(run_folder(finished_run) / "model"), "language": "English"}
    tuned = small(tones, tmp_path / "runs", {"data": data, "model": model, "training.max_steps": 4})
    result = fit(tuned, LocalEngine())
    assert result.totals["scored"] == 6
    assert "full_context" not in result.totals


def test_a_validation_clip_longer_than_the_model_is_refused_by_id(tones: Path, tmp_path: Path) -> None:
    long = write_corpus(tmp_path, ["too long"], durations_s=[1.5], name="long")
    wanted = small(tones, tmp_path, {"model.max_context_s": 1, "data.validation": str(long)})
    with pytest.raises(DataError, match=r"validation: 1 clip is longer than the model's 1 s: long/000.wav \(1.5 s\)"):
        fit(wanted, LocalEngine())


def test_what_is_too_long_is_left_out_of_training_and_on_request_out_of_the_score(tones: Path, tmp_path: Path) -> None:
    texts = ["one two", "three", "".join(chr(0x4E00 + 37 * number) for number in range(70))]
    train = write_corpus(tmp_path, texts, durations_s=[0.5, 0.6, 0.7], name="train")
    test = write_corpus(tmp_path, ["one", "two", "three " * 60], durations_s=[0.5, 1.5, 0.6], name="test")
    changes = {"model.max_context_s": 1, "data.train": str(train), "data.test": str(test), "training.max_steps": 4}
    with pytest.raises(DataError, match=r"too_long_eval: skip"):
        fit(small(tones, tmp_path, changes), LocalEngine())
    wanted = small(tones, tmp_path, {**changes, "data.too_long_eval": "skip"})
    result = fit(wanted, LocalEngine())
    assert (result.totals["utterances"], result.totals["scored"], result.totals["skipped"]) == (3, 1, 2)
    assert "(1 of 3 utterances)" in result.headline
    left_out = [json.loads(line) for line in (run_folder(wanted) / "quarantine.jsonl").read_bytes().splitlines()]
    assert [(row["split"], row["reason"]) for row in left_out] == [
        ("train", "more than 64 label tokens (the model)"),
        *[("test", "longer than the model takes, or its transcript is")] * 2,
    ]


def test_a_training_that_diverges_ends_with_the_step_and_the_learning_rate(tones: Path, tmp_path: Path) -> None:
    changes = {"training.learning_rate": 1e38, "training.training_args": {"optim": "adamw_torch_fused"}}
    wanted = small(tones, tmp_path, {**changes, "training.max_steps": 4})
    with pytest.raises(
        DivergedError, match=r"at step 2, at the learning rate 7\.5e\+37: .*Lower training\.learning_rate"
    ):
        fit(wanted, LocalEngine())
    folder = run_folder(wanted) / "attempts"
    assert not [path for path in folder.rglob("*.json*") if "NaN" in path.read_text() or "Infinity" in path.read_text()]


def test_weights_in_a_folder_transcribe_the_config_s_language(tones: Path, tmp_path: Path, hub_whisper: Path) -> None:
    said = []
    for language in ("Serbian", "Thai", None):
        model = {"init": "pretrained", "name_or_path": "openai/whisper-tiny", "language": language}
        wanted = small(tones, tmp_path, {"model": model, "decode.max_length": 4})
        if language is None:
            with pytest.raises(ConfigError, match=r"model\.language is missing: .*/whisper is multilingual"):
                evaluate(wanted, LocalEngine(), model=str(hub_whisper), split="test")
            continue
        result = evaluate(wanted, LocalEngine(), model=str(hub_whisper), split="test")
        lines = (Path(result.folder) / "evaluation/test.jsonl").read_bytes().splitlines()
        said.append([json.loads(line)["hypothesis"] for line in lines])
    assert said[0] != said[1], "neither is left to guess the language of each clip"


def test_what_a_training_says_may_be_done_next_can_be_done(tones: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "my recipe.yaml"
    # Scored once: a checkpoint that is worse than an earlier one is not to be trained on.
    recipe.write_text(to_yaml(small(tones, tmp_path, {"training.save_steps": 12})), encoding="utf-8")

    def rayscribe(*words: str) -> list[str]:
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 0, ended.output
        return ended.stdout.splitlines()

    advice = dict(line.split(": ", 1) for line in rayscribe("train", str(recipe), "--no-ray")[-5:])
    assert Path(advice["each test utterance with its hypothesis"]).is_file()
    assert any("on validation (6 utterances)" in line for line in rayscribe(*words_of(advice["score another split"])))
    assert any(line.startswith("step 24/24 ·") for line in rayscribe(*words_of(advice["train on, twice as long"])))
    recording = str(next(tones.rglob("*.wav")))
    (text,) = rayscribe(*words_of(advice["transcribe with it"].replace("recording.wav", recording)))
    program = advice["use the model in Python"].replace("recording.wav", recording)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert text in done.stdout.splitlines()


def words_of(command: str) -> list[str]:
    """What a shell gives the program."""
    program, *words = shlex.split(command)
    assert program == "rayscribe"
    return words
