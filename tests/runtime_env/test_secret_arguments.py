"""Secrets in the arguments of a program."""

import pytest

from runtime_env.secret_arguments import literal_secrets, with_secrets
from trainers.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--hub_token=abc"], "--hub_token"),
        (["--hub-token", "abc"], "--hub-token"),
        (["--password", "hunter22"], "--password"),
        (["--aws_secret_access_key", "abc"], "--aws_secret_access_key"),
        (["--api-key=abc"], "--api-key"),
        (["-token", "abc"], "-token"),
        (["--hubToken", "abc"], "--hubToken"),
        (["--model.hub_token=abc"], "--model.hub_token"),
        (["++trainer.logger.api_key=abc"], "++trainer.logger.api_key"),
        (["wandb_api_key=abc"], "wandb_api_key"),
        (['--trainer_args={"a": {"hub_token": "abc"}}'], "hub_token"),
        (["bash", "-c", "python train.py --hub_token abc"], "--hub_token"),
        (["--hub_token", "$HF_TOKEN"], "--hub_token"),
        (["--init", "hf_" + "x" * 30], "word 2"),
    ],
)
def test_a_secret_is_named_and_its_value_is_not(words: list[str], named: str) -> None:
    assert literal_secrets(["train.py", *words]) == [named.replace("word 2", "word 3")]


@pytest.mark.parametrize(
    "words",
    [
        ["--hub_token=${HF_TOKEN}", "--password", "${PW}"],
        ['--trainer_args={"hub_token": "${HF_TOKEN}"}'],
        ["bash", "-c", 'python train.py --hub_token "$HF_TOKEN"'],
        ["--use_auth_token", "True", "--use_auth_token", "--fp16", "--hub_token="],
        [
            "--word_delimiter_token",
            "|",
            "--bos_token=<s>",
            "--blank_token",
            "0",
            "--image_token_id=128",
            "--token",
            "7",
        ],
        ["--token_type", "bpe", "--token_list", "tokens.txt", "--max_tokens", "400", "--token_file", "/run/token"],
        ["--prompt", "the token is a password", "--n_pass", "2", "--key", "text"],
    ],
)
def test_references_switches_and_tokens_of_text_are_none(words: list[str]) -> None:
    assert literal_secrets(["train.py", *words]) == []


def test_the_node_s_values_stand_in_place_of_references_to_secrets_alone() -> None:
    words = ["--hub_token=${TOKEN}", "--password", "${PW}", "--out=${TOKEN}", "$PW", '--a={"api_key": "${PW}"}']
    filled = with_secrets(words, {"TOKEN": "abc", "PW": 'x"y'})
    assert filled == ["--hub_token=abc", "--password", 'x"y', "--out=${TOKEN}", "$PW", '--a={"api_key": "x\\"y"}']


def test_a_variable_that_the_node_has_not_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--hub_token refers to the variable TOKEN, which is not set on this node"):
        with_secrets(["--hub_token", "${TOKEN}"], {})
