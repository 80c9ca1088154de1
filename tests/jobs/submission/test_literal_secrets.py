"""Credentials in a recipe, at submission and in what a client sends."""

from pathlib import Path

import pytest

from jobs.submission.job_spec import RunConfig
from jobs.submission.run_request import RunRequest, run_of
from runtime_env.credentials import masked
from runtime_env.secret_arguments import find_literal_secrets
from tests.jobs.sample import CONTENT, sample_run
from tests.jobs.submission.test_job_spec import load
from trainers.errors import ConfigError

TOKEN = "hf_" + "x" * 34
PLACES = {
    "run.s3_endpoint_url": {"run": {**CONTENT["run"], "s3_endpoint_url": f"https://ana:{TOKEN}@minio:9000"}},
    "training.training_args.hub_token": {
        "training": {**CONTENT["training"], "training_args": {"hub_token": "a-plain-word"}}
    },
    "job.tags.0": {"job": {"tags": [TOKEN]}},
    "data.train": {"data": {**CONTENT["data"], "train": "https://ana:hunter22@host/train.csv"}},
    "data.test": {"data": {**CONTENT["data"], "test": "https://host/test.csv?X-Goog-Signature=hunter22"}},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_credential_is_refused_wherever_it_stands_and_never_repeated(tmp_path: Path, place: str) -> None:
    content = {**CONTENT, **PLACES[place]}
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, **PLACES[place])
    run_request = RunRequest(config=content, package="ab" * 32)
    with pytest.raises(ConfigError) as sent:
        run_of(run_request, uid="0" * 32, user="ana", address_of=lambda job: "http://head:8265", now_s=0.0)
    for message in (str(raised.value), str(sent.value)):
        assert f"{place}: looks like a credential (not shown)" in message
        assert not any(word in message for word in (TOKEN, "a-plain-word", "hunter22"))


def test_a_credential_in_an_override_is_refused_too() -> None:
    [error] = find_literal_secrets([f"run.s3_endpoint_url=https://ana:{TOKEN}@minio"], ("overrides",))
    assert error.startswith("overrides.0: looks like a credential")


def test_a_variable_of_a_program_whose_name_is_a_secrets_is_refused_whatever_its_value() -> None:
    variables = {"WANDB_API_KEY": "0123456789", "TOKENIZERS_PARALLELISM": "false", "USE_TOKEN": "1", "LR": "2"}
    [error] = find_literal_secrets({"script": {"env": variables}})
    assert error.startswith("script.env.WANDB_API_KEY: looks like a credential") and "0123456789" not in error


@pytest.mark.parametrize(
    "name",
    ["token", "access_token", "X-Amz-Security-Token", "X-Goog-Signature", "clientSecret", "pwd"],
)
def test_what_a_query_says_is_left_out_of_messages(name: str) -> None:
    assert masked(f"no answer: https://host/a?b=1&{name}=hunter22&c=2") == f"no answer: https://host/a?b=1&{name}=…&c=2"


@pytest.mark.parametrize("path", ["data.source.options.api_key", "strategy.ds_config.comet.api_key"])
def test_an_option_whose_name_is_a_secrets_is_refused_wherever_it_stands(path: str) -> None:
    content: object = "0123456789"
    for key in reversed(path.split(".")):
        content = {key: content}
    [error] = find_literal_secrets(content)
    assert error.startswith(f"{path}: looks like a credential") and "0123456789" not in error


def test_a_common_recipe_holds_none() -> None:
    config = {**sample_run().config, "model": {"special_tokens": ["<|startoftranscript|>"], "unk_token": "[UNK]"}}
    assert [*find_literal_secrets(config)] == []


@pytest.mark.parametrize("value", ["a: b", "true", "0123", "#x", "null", "plain/path", "2026-11-21", "[x]", "é ü"])
def test_what_a_variable_holds_is_taken_as_text_whatever_yaml_would_make_of_it(tmp_path: Path, value: str) -> None:
    spec = load(tmp_path, environment={"TRAIN": value}, data={**CONTENT["data"], "train": "${TRAIN}"})
    assert isinstance(spec.config, RunConfig) and spec.config.data.train == value
