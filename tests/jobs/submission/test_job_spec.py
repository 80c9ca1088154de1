"""What a user may write for submission, and what is made of it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.submission.job_spec import JobSpec, RunConfig, gang_of, load_spec
from tests.jobs.sample import CONTENT
from trainers.config.submitted import config_text
from trainers.errors import ConfigError

NOW = datetime(2026, 11, 20, 21, 30, tzinfo=UTC)


def load(folder: Path, *sets: str, environment: dict[str, str] | None = None, **content: Any) -> JobSpec:
    """Writes the sample recipe with changes, and loads it."""
    path = folder / "sr.yaml"
    path.write_text(yaml.safe_dump({**CONTENT, **content}))
    return load_spec(path, sets, environment=environment or {}, now=NOW)


def test_a_run_without_a_name_is_given_one(tmp_path: Path) -> None:
    spec = load(tmp_path, "run.name=null")
    assert spec.config.run.name == "sr-20261120-213000"
    assert spec.overrides == ("run.name=null",), "the record has what the user gave"


def training_of(spec: JobSpec) -> RunConfig:
    """The config of a spec that is no program's."""
    assert isinstance(spec.config, RunConfig)
    return spec.config


def test_recipe_overrides_and_variables_become_one_config(tmp_path: Path) -> None:
    spec = load(
        tmp_path,
        "training.max_steps=7",
        environment={"SPEECH": "/speech"},
        data={"train": "${SPEECH}/train.csv", "validation": "/data/valid.csv"},
    )
    assert training_of(spec).training.max_steps == 7
    assert training_of(spec).data.train == "/speech/train.csv"
    assert RunConfig.model_validate_json(config_text(spec.config.model_dump(mode="json"))) == spec.config


def test_variables_in_a_mix_are_those_of_this_machine_or_of_the_job(tmp_path: Path) -> None:
    members = [{"name": "a", "train": "${SPEECH}/a.csv"}, {"name": "b", "train": "${CORPUS}/b.csv"}]
    job = {"runtime_env": {"env_vars": {"CORPUS": "/there"}}}
    data = {"mix": members, "validation": "/data/valid.csv"}
    spec = load(tmp_path, environment={"SPEECH": "/here"}, data=data, job=job)
    assert [member.train for member in training_of(spec).data.mix] == ["/here/a.csv", "${CORPUS}/b.csv"]
    with pytest.raises(ConfigError, match=r"data.mix.0.train: .* names the variable SPEECH"):
        load(tmp_path, data=data, job=job)


def test_paths_count_from_the_recipe_and_those_of_overrides_from_the_current_folder(tmp_path: Path) -> None:
    for name in ("recipes", "work"):
        (tmp_path / name).mkdir()
    recipe, data = tmp_path / "recipes" / "sr.yaml", {"train": "train.csv", "validation": "../work/valid.csv"}
    recipe.write_text(yaml.safe_dump({**CONTENT, "data": data}))
    spec = load_spec(recipe, ["data.test=test.csv"], here=tmp_path / "work", environment={}, now=NOW)
    assert spec.root == tmp_path / "work"
    found = training_of(spec).data
    # What travels is named as it is there; nothing else is the same for every node but an absolute path.
    assert (found.train, found.validation, found.test) == (f"{recipe.parent}/train.csv", "valid.csv", "test.csv")
    above = ["job.runtime_env.working_dir=.."]
    spec = load_spec(recipe, above, here=tmp_path / "work", environment={}, now=NOW)
    assert (spec.root, training_of(spec).data.train) == (tmp_path, "recipes/train.csv")
    assert not spec.has_entry
    (tmp_path / "task.py").touch()
    spec = load_spec(recipe, [], here=tmp_path / "work", environment={}, now=NOW)
    assert (spec.root, spec.has_entry) == (tmp_path, True), "a clone is what travels, from any folder in it"


def test_a_relative_storage_path_is_a_folder_here_if_the_cluster_is(tmp_path: Path) -> None:
    recipe = tmp_path / "sr.yaml"
    recipe.write_text(yaml.safe_dump({**CONTENT, "run": {"name": "sr", "storage_path": "runs"}}))
    spec = load_spec(recipe, [], here=Path("/"), environment={}, now=NOW, is_local=lambda address: True)
    assert spec.config.run.storage_path == f"{tmp_path}/runs"
    here = tmp_path / "work"
    here.mkdir()
    spec = load_spec(recipe, ["run.storage_path=r"], here=here, environment={}, now=NOW, is_local=lambda address: True)
    assert spec.config.run.storage_path == f"{here}/r"


def test_the_gang_is_all_workers_and_the_cpu_that_ray_data_needs(tmp_path: Path) -> None:
    assert gang_of(load(tmp_path).config.scaling).total == {"CPU": 9.0, "GPU": 2.0}


def test_an_elastic_run_is_charged_its_most_workers(tmp_path: Path) -> None:
    spec = load(tmp_path, "scaling.num_workers={min: 1, max: 3}", "training.global_batch_size=64")
    assert (gang_of(spec.config.scaling).num_workers, gang_of(spec.config.scaling).total["GPU"]) == (3, 3.0)
    assert (gang_of(spec.config.scaling).min_workers, gang_of(load(tmp_path).config.scaling).min_workers) == (1, None)


def test_a_variable_of_the_job_is_left_for_the_node(tmp_path: Path) -> None:
    data = {"train": "${SPEECH}/train.csv", "validation": "/data/valid.csv"}
    job = {"runtime_env": {"env_vars": {"SPEECH": "/there"}}}
    spec = load(tmp_path, environment={"SPEECH": "/here"}, data=data, job=job)
    assert training_of(spec).data.train == "${SPEECH}/train.csv"
    assert spec.overrides == ()


def test_a_variable_that_nobody_sets_is_named_with_both_fixes(tmp_path: Path) -> None:
    data = {"train": "${SPEECH}/train.csv", "validation": "/data/valid.csv"}
    with pytest.raises(
        ConfigError,
        match=r"names the variable SPEECH, which is set neither here nor for the job: "
        r"export SPEECH=…, or set it in job.runtime_env.env_vars",
    ):
        load(tmp_path, data=data)


def test_all_faults_of_both_halves_come_in_one_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, "training.max_step=7", job={"prioritty": 3, "queue": "a b", "runtime_env": {"pipp": []}})
    message = str(raised.value)
    assert "4 problems" in message
    assert "training.max_step: unknown key; did you mean training.max_steps?" in message
    assert "job.prioritty: unknown key; did you mean job.priority?" in message
    assert "job.runtime_env.pipp: unknown key; did you mean job.runtime_env.pip?" in message
    assert "job.queue" in message


def test_what_the_checks_would_find_next_is_in_the_same_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = {"train": "gone/train.csv", "validation": "/data/valid.csv", "min_duration_s": 40}
    model = {"name_or_path": "openai/whisper-tiny", "language": "Klingon"}
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, "training.save_steps=7", "training.eval_steps=2", data=data, model=model)
    message = str(raised.value)
    for words in ("min_duration_s 40", "save_steps 7", "'Klingon'", "data.train: ", "gone/train.csv: no such file in"):
        assert words in message
    assert "/data/valid.csv" not in message


def test_a_secret_that_was_written_down_is_refused_without_being_repeated(tmp_path: Path) -> None:
    secret = "hf_" + "x" * 34
    for part in ({"env_vars": {"HF_TOKEN": secret}}, {"index_url": f"https://ana:{secret}@pypi.example.org/simple"}):
        with pytest.raises(ConfigError) as raised:
            load(tmp_path, job={"runtime_env": part})
        assert secret not in str(raised.value)
        assert "job.runtime_env" in str(raised.value)


def test_a_relative_storage_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run.storage_path is runs, a relative path"):
        load(tmp_path, "run.storage_path=runs")


def test_a_storage_of_an_unknown_kind_is_refused_by_its_scheme(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.storage_path: hdfs:// is not supported"):
        load(tmp_path, "run.storage_path=hdfs://bucket/runs")


def test_a_run_does_not_wait_for_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sr depends on itself"):
        load(tmp_path, job={"depends_on": ["sr"]})


@pytest.mark.parametrize("address", ["127.0.0.1:8265", "http://ana:pw@host:8265", "ftp://host"])
def test_an_address_is_a_url_without_credentials(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match=r"job\.address"):
        load(tmp_path, job={"address": address})


def test_a_program_s_job_has_longer_to_stop_than_the_program(tmp_path: Path) -> None:
    path = tmp_path / "sr.yaml"
    recipe = {"trainer": "script", "script": {"command": "train.py"}, "run": {"storage_path": "/runs"}}
    path.write_text(yaml.safe_dump({**recipe, "job": {"stop_grace_s": 90}}))
    with pytest.raises(ConfigError, match=r"job\.stop_grace_s is 90, and script\.stop_grace_s is 90: the job would be"):
        load_spec(path, [], now=NOW)
    assert load_spec(path, ["script.stop_grace_s=60"], now=NOW).job.stop_grace_s == 90
