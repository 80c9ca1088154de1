import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trainers.synthetic import (
    add_languages,
    config,
    content,
    speechlike,
    write_corpus,
    write_recording,
    write_rows,
)
from trainers.errors import ResourceError
from trainers.main import main
from trainers.models.families import family_of
from trainers.pipeline.demo_run import NOTICE

TASK = Path(__file__).parents[2] / "task.py"
FEW_WORDS = ["one two", "three", "four five six"]


def task(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs task.py as a shell would."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "BUCKET_URI"))}
    return subprocess.run(
        [sys.executable, str(TASK), *arguments],
        cwd=folder,
        env={**known, "PYTHONPATH": str(TASK.parent), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def one_message(answer: subprocess.CompletedProcess[str]) -> str:
    """The message of a task that failed with nothing but a message."""
    assert answer.returncode not in (0, 1)
    assert "Traceback" not in answer.stderr
    assert answer.stderr.count("error: ") == 1
    return answer.stderr


@pytest.mark.integration
def test_without_arguments_the_first_line_says_that_the_demo_recipe_runs(tmp_path: Path) -> None:
    ended = task(folder=tmp_path, RAY_ADDRESS="127.0.0.1:1")
    assert ended.stdout.splitlines()[0] == NOTICE
    assert ended.returncode == ResourceError.exit_code
    assert "127.0.0.1:1" in one_message(ended)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe over three synthetic recordings, valid as it is."""
    return write_recipe(tmp_path, {})


def write_recipe(folder: Path, changes: dict[str, Any]) -> Path:
    train = write_corpus(folder, FEW_WORDS, durations_s=[0.5, 0.7, 1.0])
    valid = write_corpus(folder, FEW_WORDS[:1], durations_s=[0.6], name="valid")
    own = {
        "data.train": str(train),
        "data.validation": str(valid),
        "run.name": "mine",
        "run.storage_path": str(folder / "runs"),
    }
    path = folder / "my.yaml"
    path.write_text(yaml.safe_dump(content({**own, **changes})))
    return path


def write_model(folder: Path) -> Path:
    """A model of random weights, as an export leaves it."""
    part = config({}).model
    family = family_of(part)
    family.write_description(folder, FEW_WORDS, part)
    recognizer = family.load_recognizer(part, folder, seed=1)
    recognizer.model.save_pretrained(folder)
    recognizer.processor.save_pretrained(folder)
    return folder


def refused(recipe: Path, capsys: pytest.CaptureFixture[str], *overrides: str) -> tuple[int, str]:
    """Exit code and message of training here, which must end before it begins."""
    sets = [word for override in overrides for word in ("--set", override)]
    code = main(["--config", str(recipe), "--no-ray", *sets])
    # Libraries may have warned before.
    _, error, message = capsys.readouterr().err.partition("error: ")
    assert error
    run = recipe.parent / "runs" / "mine"
    assert not [*run.glob("checkpoints/*"), *run.glob("attempts/*/metrics*"), *run.glob("attempts/*/logs/*")]
    assert not (run / "checkpoints").exists()
    return code, message


class TestTask:
    def test_a_missing_file_ends_with_one_message(self, tmp_path: Path) -> None:
        answer = task("--config", "nowhere.yaml", folder=tmp_path)
        assert answer.returncode == 2
        assert "nowhere.yaml: no such file; name a recipe" in one_message(answer)

    @pytest.mark.integration
    def test_all_faults_of_a_recipe_come_in_one_message(self, recipe: Path) -> None:
        overrides = ("--set", "training.max_step=3", "--set", "training.learning_rate=fast")
        answer = task("--config", str(recipe), *overrides, folder=recipe.parent)
        assert answer.returncode == 2
        message = one_message(answer)
        assert "2 problems" in message
        assert "training.max_step: unknown key; did you mean training.max_steps?" in message
        assert "training.learning_rate: " in message
        assert "'fast'" in message

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ("run.s3_endpoint_url=https://ana:hunter22@minio:9000", "run.s3_endpoint_url"),
            ("training.training_args.hub_token=hunter22", "training.training_args.hub_token"),
            ("model.tokenizer_name=https://host/a.zip?X-Goog-Signature=hunter22", "model.tokenizer_name"),
        ],
    )
    @pytest.mark.integration
    def test_a_credential_is_refused_with_the_other_faults_and_stored_nowhere(
        self, recipe: Path, change: str, field: str
    ) -> None:
        home = recipe.parent / "home"
        overrides = ("--set", change, "--set", "training.max_step=3")
        answer = task("--config", str(recipe), *overrides, folder=recipe.parent, RAYSCRIBE_HOME=str(home))
        message = one_message(answer)
        assert f"{field}: looks like a credential (not shown)" in message
        assert "training.max_step: unknown key" in message
        assert "hunter22" not in f"{answer.stdout}{answer.stderr}"
        assert not [*home.rglob("*.json")] and not (recipe.parent / "runs").exists()

    @pytest.mark.parametrize("config_fault", [True, False])
    def test_files_language_and_storage_are_in_the_same_message(
        self, *, config_fault: bool, recipe: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (recipe.parent / "file").touch()
        wrong = {
            "data.train": "gone.csv",
            "data.validation": "away.csv",
            "model.language": "Klingon",
            "augment.noise_manifest": "noise.csv",
            "run.storage_path": f"{recipe.parent}/file/runs",
            "training.max_steps": 4,
            "training.warmup_steps": 50,
        }
        changes = [f"{field}={value}" for field, value in wrong.items()]
        changes += ["training.max_step=3"] if config_fault else []
        code, message = refused(recipe, capsys, *changes)
        assert code == (2 if config_fault else 4), "another disk may be there when it is tried again"
        assert f"{recipe}: {6 if config_fault else 5} problems" in message
        for words in (
            "data.train: ",
            "data.validation: ",
            "'Klingon'",
            "augment.noise_manifest: ",
            "noise.csv: no such file or folder",
            "/file/runs",
        ):
            assert words in message

    def test_a_warm_up_beyond_the_steps_is_told_before_anything_is_prepared(
        self, recipe: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        sets = ("training.warmup_steps=50", "training.max_steps=4", "data.train=gone.csv")
        main(["--config", str(recipe), "--no-ray", *(word for each in sets for word in ("--set", each))])
        shown = capsys.readouterr().out
        assert "warning: training.warmup_steps 50 is not below the run's 4 steps" in shown

    def test_a_flag_of_the_wrong_type_is_named(self, tmp_path: Path) -> None:
        answer = task("--model_size", "tiny", "--max_steps", "many", folder=tmp_path)
        assert answer.returncode == 2
        assert "--max_steps" in answer.stderr
        assert "'many'" in answer.stderr
        assert "Traceback" not in answer.stderr

    def test_inside_a_job_a_relative_storage_is_refused(self, recipe: Path) -> None:
        answer = task(
            "--config",
            str(recipe),
            "--set",
            "run.storage_path=runs",
            folder=recipe.parent,
            RAY_JOB_CONFIG_JSON_ENV_VAR="{}",
        )
        assert answer.returncode == 2
        assert "run.storage_path is runs, a relative path inside a Ray job" in one_message(answer)

    @pytest.mark.integration
    def test_bad_data_ends_with_one_message_too(self, recipe: Path) -> None:
        write_rows(recipe.parent / "empty.csv", [])
        override = f"data.train={recipe.parent / 'empty.csv'}"
        answer = task("--config", str(recipe), "--no-ray", "--set", override, folder=recipe.parent)
        assert answer.returncode == 3
        assert "empty.csv: no rows: add one line for each recording" in one_message(answer)

    def test_help_shows_examples(self, tmp_path: Path) -> None:
        answer = task("--help", folder=tmp_path)
        assert answer.returncode == 0
        assert "--set scaling.num_workers=2" in answer.stdout


class TestBeforeTraining:
    def test_a_missing_manifest(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, message = refused(recipe, capsys, "data.train=nowhere.csv")
        assert code == 3
        assert "nowhere.csv: no such file; give the path of a manifest (--set data.train=" in message

    def test_an_empty_manifest(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (recipe.parent / "empty.csv").write_text("")
        code, message = refused(recipe, capsys, f"data.validation={recipe.parent / 'empty.csv'}")
        assert code == 3
        assert "empty.csv: no rows" in message

    def test_no_column_of_transcripts(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_rows(recipe.parent / "other.csv", [("a.wav", "a")], header=("path", "sentence"))
        code, message = refused(recipe, capsys, f"data.train={path}")
        assert code == 3
        assert "no column 'text'" in message
        assert "set data.text_column_name to 'sentence'" in message

    def test_recordings_that_are_not_there(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_rows(recipe.parent / "gone.csv", [("gone.wav", "a"), ("gone too.wav", "b")])
        code, message = refused(recipe, capsys, f"data.train={path}")
        assert code == 3
        assert "2 of 2 recordings cannot be decoded" in message
        assert "2 × no such file" in message

    def test_a_storage_that_cannot_be_written(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (recipe.parent / "file").write_text("")
        storage = recipe.parent / "file" / "runs"
        code, message = refused(recipe, capsys, f"run.storage_path={storage}")
        assert code == 4
        assert str(recipe.parent / "file") in message

    def test_a_transcript_that_the_decoder_cannot_hold(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        recipe = write_recipe(tmp_path, {"model.max_label_tokens": 5})
        code, message = refused(recipe, capsys)
        assert code == 3
        assert "validation: " in message
        assert "more label tokens than the model's 5: valid/" in message
        assert "shorten or split" in message

    def test_a_clip_that_the_model_cannot_hear_whole(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_recording(recipe.parent / "long.wav", speechlike(3.2))
        path = write_rows(recipe.parent / "long.csv", [("long.wav", "a")])
        code, message = refused(recipe, capsys, f"data.test={path}")
        assert code == 3
        assert "test: 1 clip is longer than the model's 3 s: long.wav (3.2 s)" in message

    def test_transcripts_that_are_all_empty(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_rows(recipe.parent / "silent.csv", [("train/000.wav", ""), ("train/001.wav", " ")])
        code, message = refused(recipe, capsys, f"data.train={path}")
        assert code == 3
        assert "none of 2 clips is left to train on: 2 empty transcript" in message

    def test_a_language_that_whisper_does_not_know(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, message = refused(recipe, capsys, "model.language=Klingon")
        assert code == 2
        assert "no token for 'Klingon'" in message

    def test_a_clip_s_language_that_whisper_does_not_know(
        self, recipe: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        add_languages(recipe.parent / "train.csv", ["Klingon", "sr", ""])
        code, message = refused(recipe, capsys)
        assert code == 2
        assert "data.train: column language: 1 clip has the language 'Klingon'" in message
        assert not [*(recipe.parent / "runs/prepared").glob("*.json")], "before anything is prepared"

    @pytest.mark.parametrize(
        ("override", "words"),
        [
            ("model.language=Englsh", "no token for 'Englsh'; did you mean English?"),
            ("run.storage_path=/proc/runs", "/proc/runs"),
            ("data.train=nowhere.csv", "nowhere.csv: no such file"),
        ],
    )
    def test_what_can_be_known_before_torch_is_loaded(
        self, recipe: Path, capsys: pytest.CaptureFixture[str], override: str, words: str
    ) -> None:
        assert main(["--config", str(recipe), "--set", override]) != 0
        output, message = capsys.readouterr()
        assert "imports: " not in output
        assert words in message

    def test_weights_that_are_not_there(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (recipe.parent / "weights").mkdir()
        overrides = ("model.init=pretrained", f"model.name_or_path={recipe.parent / 'weights'}")
        code, message = refused(recipe, capsys, *overrides)
        assert code == 2
        assert f"{recipe.parent / 'weights'}: holds no weights (model.safetensors)" in message

    @pytest.mark.parametrize(
        ("argument", "words"),
        [("output_dir", "use run.storage_path"), ("learning_rat", "did you mean learning_rate?")],
    )
    def test_training_args_that_are_not_the_user_s(
        self, recipe: Path, capsys: pytest.CaptureFixture[str], argument: str, words: str
    ) -> None:
        code, message = refused(recipe, capsys, f"training.training_args.{argument}=1")
        assert code == 2
        assert f"training.training_args.{argument}" in message
        assert words in message


class TestVerbs:
    def test_prepare_prints_one_line_a_split(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--config", str(recipe), "--no-ray", "--verb", "prepare"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert any(line.startswith("train: 3 rows · 3 prepared") for line in lines)
        assert any(line.startswith("validation: 1 row · 1 prepared") for line in lines)

    @pytest.mark.parametrize("verb", ["train", "prepare", "check"])
    def test_a_storage_of_an_unknown_kind_is_refused_and_no_folder_is_made(
        self,
        recipe: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        verb: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        before = sorted(tmp_path.rglob("*"))
        arguments = [
            "--config",
            str(recipe),
            "--no-ray",
            "--verb",
            verb,
            "--set",
            "run.storage_path=hdfs://bucket/runs",
        ]
        assert main(arguments) == 2
        assert "run.storage_path: hdfs:// is not supported: give a folder, or an s3://" in capsys.readouterr().err
        assert sorted(tmp_path.rglob("*")) == before

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ([], "--model is missing"),
            (["--model", "x", "--split", "dev"], "--split dev: one of train, validation, test"),
            (["--model", "./nowhere"], "--model ./nowhere: no such folder"),
            (
                ["--model", "hdfs://bucket/model"],
                "--model hdfs://bucket/model: hdfs:// is not supported: give a folder, or",
            ),
        ],
    )
    def test_evaluate_says_what_it_lacks(
        self, recipe: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
    ) -> None:
        assert main(["--config", str(recipe), "--no-ray", "--verb", "evaluate", *arguments]) == 2
        assert words in capsys.readouterr().err

    def test_evaluate_asks_for_nothing_but_the_split_and_where_to_write(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        test = write_corpus(tmp_path, FEW_WORDS, durations_s=[0.5, 0.7, 1.0], name="test")
        model = write_model(tmp_path / "model")
        path = tmp_path / "score.yaml"
        path.write_text(yaml.safe_dump({"data": {"test": str(test)}, "run": {"storage_path": str(tmp_path / "runs")}}))
        assert main(["--config", str(path), "--no-ray", "--verb", "evaluate", "--model", str(model)]) == 0
        assert "on test (3 utterances)" in capsys.readouterr().out

    def test_the_score_that_evaluate_writes_names_the_language_by_which_it_is_compared(self, tmp_path: Path) -> None:
        test = write_corpus(tmp_path, FEW_WORDS, durations_s=[0.5, 0.7, 1.0], name="test")
        model = write_model(tmp_path / "model")
        path = tmp_path / "score.yaml"
        where = {"data": {"test": str(test)}, "run": {"storage_path": str(tmp_path / "runs")}}
        path.write_text(yaml.safe_dump({**where, "model": {"language": "Thai"}}))
        assert main(["--config", str(path), "--no-ray", "--verb", "evaluate", "--model", str(model)]) == 0
        (totals,) = (tmp_path / "runs" / "evaluations").glob("*/evaluation/test.json")
        assert json.loads(totals.read_bytes())["language"] == "Thai"

    def test_evaluate_warns_of_a_normalizer_that_hides_marks(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        test = write_corpus(tmp_path, ["किताब मेज़ पर", "बहन"], durations_s=[0.5, 0.7], name="test")
        model = write_model(tmp_path / "model")
        path = tmp_path / "score.yaml"
        data = {"test": str(test), "normalizer": "whisper_basic"}
        path.write_text(yaml.safe_dump({"data": data, "run": {"storage_path": str(tmp_path / "runs")}}))
        assert main(["--config", str(path), "--no-ray", "--verb", "evaluate", "--model", str(model)]) == 0
        said = "warning: test: the normalizer whisper_basic removes marks from 2 of 4 words of the references"
        assert said in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("language", "words"),
        [
            (
                "xho_Latn",
                "data.test: column language: 1 clip has the language 'xho_Latn' (Whisper has no token for 'xho",
            ),
            (
                "zh-HK",
                "data.test: column language: 1 clip has the language 'zh-HK' (the model has no token <|yue|> of Ca",
            ),
        ],
    )
    def test_evaluate_refuses_a_language_without_a_token_before_it_prepares(
        self, recipe: Path, capsys: pytest.CaptureFixture[str], language: str, words: str
    ) -> None:
        test = write_corpus(recipe.parent, FEW_WORDS, durations_s=[0.5, 0.7, 1.0], name="test")
        add_languages(test, ["sr", "jv", language])
        model = write_model(recipe.parent / "model")
        tokenizer = (model / "tokenizer.json").read_text(encoding="utf-8")
        # That of the models before large-v3.
        (model / "tokenizer.json").write_text(tokenizer.replace("<|yue|>", "<|none|>"), encoding="utf-8")
        arguments = ["--config", str(recipe), "--no-ray", "--verb", "evaluate", "--model", str(model)]
        assert main([*arguments, "--set", f"data.test={test}"]) == 2
        assert words in capsys.readouterr().err
        assert not [*(recipe.parent / "runs/prepared").glob("*.json")]

    @pytest.mark.integration
    def test_evaluate_passes_over_paths_of_other_verbs(
        self, recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("RAYSCRIBE_TEST_NOWHERE", raising=False)
        test = write_corpus(recipe.parent, FEW_WORDS, durations_s=[0.5, 0.7, 1.0], name="test")
        unset = "${RAYSCRIBE_TEST_NOWHERE}"
        sets = [
            f"data.train={unset}/train.csv",
            f"data.validation={unset}/valid.csv",
            f"data.test={test}",
            "model.init=pretrained",
            f"model.name_or_path={unset}/weights",
            "training.training_args.learning_rat=1",
        ]
        model = write_model(recipe.parent / "model")
        arguments = ["--config", str(recipe), "--no-ray", *(word for text in sets for word in ("--set", text))]
        assert main([*arguments, "--verb", "evaluate", "--model", str(model)]) == 0
        assert "on test (3 utterances)" in capsys.readouterr().out
        assert main([*arguments, "--verb", "evaluate", "--model", str(model), "--split", "validation"]) == 2
        assert "data.validation: ${RAYSCRIBE_TEST_NOWHERE}/valid.csv names the variable" in capsys.readouterr().err
        assert main(arguments) == 2
        message = capsys.readouterr().err
        assert "data.train: " in message and "model.name_or_path: " in message

    def test_prepare_asks_for_no_weights_and_no_length(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        test = write_corpus(tmp_path, FEW_WORDS, durations_s=[0.5, 0.7, 1.0], name="test")
        path = tmp_path / "prepare.yaml"
        content = {"data": {"test": str(test)}, "run": {"storage_path": str(tmp_path / "runs")}}
        path.write_text(yaml.safe_dump(content))
        assert main(["--config", str(path), "--no-ray", "--verb", "prepare"]) == 0
        assert "test: 3 rows · 3 prepared" in capsys.readouterr().out
        path.write_text(yaml.safe_dump({**content, "data": {}}))
        assert main(["--config", str(path), "--no-ray", "--verb", "prepare"]) == 2
        assert "data: names no data to prepare" in capsys.readouterr().err

    def test_evaluate_needs_the_split(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        model = recipe.parent / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps({}))
        assert main(["--config", str(recipe), "--no-ray", "--verb", "evaluate", "--model", str(model)]) == 2
        assert "data.test: names no data to score (--set data.test=" in capsys.readouterr().err
