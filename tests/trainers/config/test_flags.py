import re
from pathlib import Path

import pytest

from trainers.config.flags.task_line import base_of_flags, overrides_of
from trainers.config.loader import build_config
from trainers.config.schema import TrainConfig
from trainers.config.submitted import config_text
from trainers.config.unused_fields import refuse_unused_fields
from trainers.errors import ConfigError
from trainers.main import config_of, parse

LONG_KNOWN = (
    "--model_size tiny --name sr --language Serbian --per_device_train_batch_size 64 --gradient_accumulation_steps 1 "
    "--learning_rate 1e-5 --max_steps 5000 --per_device_eval_batch_size 8 --save_steps 1000 --logging_steps 25 "
    "--num-workers 3 --use-gpu"
)


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BUCKET_URI", raising=False)
    monkeypatch.delenv("RAYSCRIBE_CONFIG", raising=False)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    monkeypatch.chdir(tmp_path)


def built(line: str) -> TrainConfig:
    config, _ = config_of(parse(line.split()))
    assert isinstance(config, TrainConfig)
    return config


def test_the_long_known_command_line_gives_exactly_these_fields() -> None:
    expected = build_config(
        {
            "run": {"name": "whisper-tiny-sr"},
            "data": {
                "dataset": {"name": "google/fleurs", "config_name": "sr"},
                "audio_column_name": "audio",
                "text_column_name": "raw_transcription",
            },
            "model": {"init": "pretrained", "name_or_path": "openai/whisper-tiny", "language": "Serbian"},
            "training": {
                "max_steps": 5000,
                "per_device_train_batch_size": 64,
                "per_device_eval_batch_size": 8,
                "gradient_accumulation_steps": 1,
                "learning_rate": 1e-5,
                "warmup_steps": 500,
                "save_steps": 1000,
                "logging_steps": 25,
            },
            "scaling": {"num_workers": 3, "use_gpu": True},
        },
        origin="expected",
    )
    assert built(LONG_KNOWN) == expected


def test_an_elastic_number_of_workers_is_two_numbers() -> None:
    line = "--model_size tiny --name sr --max_steps 200 --set training.global_batch_size=64 --num-workers"
    scaling = built(f"{line} 2:8").scaling
    assert (scaling.is_elastic, scaling.min_workers, scaling.max_workers) == (True, 2, 8)
    with pytest.raises(SystemExit):
        built(f"{line} 2:many")


def test_a_short_training_warms_up_for_a_tenth_of_it() -> None:
    assert built("--model_size tiny --name sr --max_steps 200").training.warmup_steps == 20
    assert built("--model_size tiny --name sr --max_steps 200 --warmup_steps 0").training.warmup_steps == 0


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("--max_steps 100 --lr_scheduler_type constant", 0),
        ("--max_steps 100 --set training.lr_scheduler_type=constant", 0),
        ("--lr_scheduler_type constant --set training.lr_scheduler_type=linear", 500),
        ("--set training.max_steps=200", 20),
        ("--set training.max_steps=200 --set training.warmup_steps=3", 3),
        ("--set training.max_steps=null --set training.num_train_epochs=3", 0),
    ],
)
def test_the_warm_up_is_of_what_is_trained_however_that_was_set(line: str, steps: int) -> None:
    wanted = built(f"--model_size tiny --name sr {line}")
    assert wanted.training.warmup_steps == steps
    refuse_unused_fields(wanted)


def test_a_length_that_is_no_number_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"training\.max_steps"):
        built("--model_size tiny --name sr --set training.max_steps=many")


def test_both_spellings_of_a_flag_mean_the_same() -> None:
    dashes = LONG_KNOWN.replace("--num-workers", "--num_workers").replace("--use-gpu", "--use_gpu")
    underscores = "--model-size tiny --max-steps 5000 --save-steps 1000"
    assert built(dashes) == built(LONG_KNOWN)
    assert built(underscores) == built(underscores.replace("model-size", "model_size").replace("-steps", "_steps"))


def test_a_flag_beats_the_file_and_set_beats_the_flag(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(
        "{data: {demo: {}}, model: {init: scratch, language: English}, training: {max_steps: 5, save_steps: 7}}"
    )
    config = built("--config my.yaml --max_steps 6 --save_steps 8 --set training.save_steps=9")
    assert (config.training.max_steps, config.training.save_steps) == (6, 9)


def test_a_flag_that_is_not_given_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(
        "{data: {demo: {}}, model: {init: scratch, language: English}, training: {max_steps: 5}, "
        "scaling: {use_gpu: true, num_workers: 2}}"
    )
    scaling = built("--config my.yaml").scaling
    assert (scaling.use_gpu, scaling.num_workers) == (True, 2)


def test_bucket_uri_is_the_storage_of_flags_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKET_URI", "s3://bucket/runs")
    assert built(LONG_KNOWN).run.storage_path == "s3://bucket/runs"


@pytest.mark.parametrize("override", ["--set run.storage_path=s3://other/x", "--storage-path s3://other/x"])
def test_what_is_asked_for_beats_bucket_uri(monkeypatch: pytest.MonkeyPatch, override: str) -> None:
    monkeypatch.setenv("BUCKET_URI", "s3://bucket/runs")
    assert built(f"{LONG_KNOWN} {override}").run.storage_path == "s3://other/x"


def test_an_empty_bucket_uri_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKET_URI", "")
    assert built(LONG_KNOWN).run.storage_path is None


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("--model_size small", "whisper-small"),
        ("--model_size large-v3 --name sr_rs", "whisper-large-v3-sr_rs"),
        ("--model_name_or_path openai/whisper-tiny.en", "whisper-tiny.en"),
        ("--model_name_or_path my/model@3", "whisper-model-3"),
        ("--model_name_or_path https://host/mine.zip?key=secret#sha256=" + "ab" * 32, "whisper-mine.zip"),
        ("--model_size tiny --run-name mine", "mine"),
    ],
)
def test_a_run_without_a_file_is_named_by_its_weights(flags: str, name: str) -> None:
    assert built(flags).run.name == name


def test_another_data_set_brings_the_usual_columns() -> None:
    data = built("--model_size tiny --dataset my/set").data
    assert data.dataset is not None
    assert (data.dataset.name, data.audio_column_name, data.text_column_name) == ("my/set", "audio", "text")


def test_a_run_of_a_file_is_named_by_the_file_and_the_time(tmp_path: Path) -> None:
    (tmp_path / "my recipe (1).yaml").write_text(
        "{data: {demo: {}}, model: {init: scratch, language: English}, training: {max_steps: 5}}"
    )
    name = config_of(parse(["--config", "my recipe (1).yaml"]))[0].run.name
    assert name is not None
    assert name.startswith("my-recipe-1-2")


def test_neither_file_nor_weights_is_refused_with_both() -> None:
    with pytest.raises(ConfigError, match=r"--config .*--model_size tiny"):
        built("--max_steps 3")


@pytest.mark.parametrize("line", ["--model_size tiny --use", "--model_size tiny --max_step 5"])
def test_a_shortened_flag_is_not_guessed(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        built(line)
    assert caught.value.code == 2
    assert line.split()[2] in capsys.readouterr().err


def test_a_switch_that_is_off_turns_the_recipe_off() -> None:
    assert overrides_of({"use_gpu": False, "max_steps": None}) == [(("scaling", "use_gpu"), False)]


def test_the_base_of_flags_is_valid_once_it_has_weights() -> None:
    base = base_of_flags({"model_size": "tiny"})
    base["model"]["name_or_path"] = "openai/whisper-tiny"
    assert build_config(base, origin="x").training.max_steps == 5000


class TestSubmitted:
    """task.py next to a config that the service has passed."""

    @pytest.fixture(autouse=True)
    def config(self, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
        config = built("--model_size tiny --storage-path /mnt/runs")
        monkeypatch.setenv("RAYSCRIBE_CONFIG", config_text(config.model_dump(mode="json")))
        monkeypatch.setenv("BUCKET_URI", "s3://elsewhere")
        return config

    def test_it_is_taken_as_it_is_whatever_the_environment_says(self, config: TrainConfig) -> None:
        assert built("--attempt 2") == built("") == config

    @pytest.mark.parametrize("line", ["--config a.yaml", "--set run.seed=1", "--num-workers 64", "--model_size base"])
    def test_arguments_that_would_change_it_are_refused(self, line: str) -> None:
        with pytest.raises(ConfigError, match=rf"{line.split(maxsplit=1)[0]}.*RAYSCRIBE_CONFIG holds the config"):
            built(line)

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"job": []}', '{"job": {}}'])
    def test_what_is_no_config_is_refused(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAYSCRIBE_CONFIG", text)
        with pytest.raises(ConfigError, match="RAYSCRIBE_CONFIG"):
            built("")


KEYS = "--s3_bucket speech --s3_train_csv_key sr/train.csv --s3_valid_csv_key sr/valid.csv"


def test_keys_in_a_bucket_are_the_manifests_of_flags_and_of_a_file(tmp_path: Path) -> None:
    data = built(f"--model_size tiny --language Serbian {KEYS} --s3-test-csv-key=/sr/test.csv").data
    assert (data.train, data.validation, data.test) == tuple(
        f"s3://speech/sr/{name}.csv" for name in ("train", "valid", "test")
    )
    assert data.dataset is None
    assert (data.audio_column_name, data.text_column_name) == ("path", "text")
    (tmp_path / "my.yaml").write_text(
        "{data: {train: a.csv, validation: b.csv}, model: {init: scratch, language: English}, training: {max_steps: 5}}"
    )
    data = built("--config my.yaml --s3_bucket s3://speech/ --s3_train_csv_key train.csv").data
    assert (data.train, data.validation) == ("s3://speech/train.csv", str(tmp_path / "b.csv"))


def test_manifests_that_are_set_take_the_place_of_the_usual_data_set() -> None:
    data = built("--model_size tiny --set data.train=s3://b/train.csv --set data.validation=s3://b/v.csv").data
    assert (data.train, data.dataset, data.text_column_name) == ("s3://b/train.csv", None, "text")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--s3_train_csv_key train.csv --s3_valid_csv_key valid.csv", "--s3_bucket is missing: --s3_train_csv_key"),
        ("--s3_bucket speech", "--s3_bucket speech: name the manifests in it, by --s3_train_csv_key"),
        ("--s3_bucket speech --s3_train_csv_key train.csv", "--s3_valid_csv_key"),
        ("--s3_bucket speech --s3_valid_csv_key valid.csv", "--s3_train_csv_key"),
        ("--s3_bucket speech --s3_train_csv_key s3://b/train.csv", "--set data.train=s3://b/train.csv"),
        (f"{KEYS} --dataset my/set", "names train and dataset"),
    ],
)
def test_a_missing_or_contradicting_flag_of_a_bucket_is_named(flags: str, named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        built(f"--model_size tiny {flags}")


def test_a_corpus_in_its_own_format_is_named_as_a_data_set_is() -> None:
    line = "--model_size tiny --language Serbian --dataset common_voice:/cv/21.0 --name sr"
    data = built(f"{line} --train_split_name train+other").data
    assert data.dataset is None and (data.audio_column_name, data.text_column_name) == ("path", "text")
    assert (data.train, data.validation, data.test) == (
        "common_voice:/cv/21.0?language=sr&split=train+other",
        "common_voice:/cv/21.0?language=sr",
        "common_voice:/cv/21.0?language=sr",
    )


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (
            "--dataset kaldi:/data/train",
            "--dataset kaldi:/data/train: kaldi: is one split: give each as --set data.train",
        ),
        ("--dataset common_voice:", "--dataset common_voice:: common_voice:: common_voice: must be followed by a path"),
    ],
)
def test_a_corpus_that_flags_cannot_name_is_refused(flags: str, named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        built(f"--model_size tiny {flags}")
