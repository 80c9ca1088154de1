"""Secrets in the arguments of a program."""

import pytest

from runtime_env.secret_arguments import literal_secrets, secret_references, with_secrets
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
        (["--password", "-s3cr3t-x9"], "--password"),
        (["--hub_token=", "s3cr3t"], "--hub_token"),
        (["--cfg", "{hub_token: s3cr3t}"], "hub_token"),
        (["--cfg", '{"a": [{"hub_token": ["s3cr3t"]}]}'], "hub_token"),
        (["--cfg", '{"password": 12345678}'], "password"),
        (["a[0].api_key=s3cr3t"], "a[0].api_key"),
        (["logger/wandb.api_key=s3cr3t"], "logger/wandb.api_key"),
        (["~x.hub_token=s3cr3t"], "~x.hub_token"),
        (["--model_args=a=1,token=s3cr3t"], "token"),
        (["--x", "a=1;token=s3cr3t"], "token"),
        (["--x", "token:s3cr3t"], "token"),
        (["--header", "X-Api-Key: s3cr3t"], "X-Api-Key"),
        (["--auth", "Bearer s3cr3t"], "--auth"),
        (["--authorization", "Bearer s3cr3t"], "--authorization"),
        (["--csv", "https://host/a.csv?x=1&X-Goog-Signature=s3cr3t"], "word 2"),
        (["--key", "nvapi-" + "x" * 40], "word 2"),
        (["bash", "-c", "true;HF_TOKEN=s3cr3t python t.py"], "HF_TOKEN"),
        (["bash", "-c", "bash -lc 'python t.py --hub_token \"s3cr3t\"'"], "--hub_token"),
        (["bash", "-c", "t.py --hub_token ${X:-s3cr3t}"], "--hub_token"),
        (["python", "-c", 'login(token="s3cr3t")'], "token"),
        (["--hub_token", "${A}s3cr3t"], "--hub_token"),
        (["--hub_token", "(s3cr3t"], "--hub_token"),
        *(
            ([f"--{name}", "s3cr3t"], f"--{name}")
            for name in (
                *("pwd", "db_pwd", "bearer", "auth", "api_keys", "passwords"),
                *("hftoken", "HFToken", "wandb_key", "hub_token2"),
            )
        ),
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
        ["--hub_token=None", "--token", "null", "--password=None", "--secret_ratio=0.5", "--cfg", '{"token": null}'],
        ["--api_key_env=WANDB_API_KEY", "--token_env_var=HF_TOKEN", "--mask_token_prob=0.065", "--token_rate=high"],
        ["--token_budget=1e6", "--audio_token_index=151646000", "--token_level_loss=mean", "--loss_per_token=sum"],
        ["--first_pass=greedy", "--second_pass=rescoring", "--split_by_token=word", "--token_pooling=mean"],
        ["--token_mask=span", "--token_embedding=sinus", "--lang_token=de", "--target_lang_token=deu"],
        ["--use_auth_token", "-n", "4", "--cfg", '{"pad_token": "[PAD]", "token": "<s>"}'],
        ["--db=${USER}:${PW}", "--password=${USER}-${PW}", "--header=Auth: Bearer ${A}", "--auth", "Bearer ${A}"],
        ["bash", "-c", "export TOKEN=$(cat /run/token); HF_TOKEN=$TOKEN t.py '--hub_token' \"${TOKEN}\""],
        ["python", "-c", 'login(token=os.environ["HF_TOKEN"])'],
        ["--silence_token", "sil", "--sos_token=sos", "--split_token", "word", "--speaker_token=spk"],
        ["--csv", "https://host/a.csv?token_type=x&signatures=2&design=a"],
    ],
)
def test_references_switches_and_tokens_of_text_are_none(words: list[str]) -> None:
    assert literal_secrets(["train.py", *words]) == []


def test_the_node_s_values_stand_in_place_of_references_to_secrets() -> None:
    words = [
        "--hub_token=${API}",
        "--password",
        "${PW}",
        "-a",
        "${A_TOKEN}",
        "$PW",
        "${DIR}",
        '--a={"api_key": "${PW}"}',
    ]
    filled = with_secrets(words, {"API": "abc", "PW": 'x"y', "A_TOKEN": "${PW}", "DIR": "/"})
    json = '--a={"api_key": "x\\"y"}'
    assert filled == ["--hub_token=abc", "--password", 'x"y', "-a", "${PW}", "$PW", "${DIR}", json]


def test_only_what_a_shell_reads_is_left_to_it() -> None:
    words = ["--model_args", "pretrained=x token=${T}", "--header=Bearer ${HF_TOKEN}", "bash", "-lc", "a --token ${T}"]
    filled = with_secrets(words, {"T": "abc", "HF_TOKEN": "def"})
    assert filled == ["--model_args", "pretrained=x token=abc", "--header=Bearer def", "bash", "-lc", "a --token ${T}"]
    assert {*secret_references(["bash", "-c", "a --token $T -p $HF_TOKEN $DIR"])} == {"T", "HF_TOKEN"}


def test_a_variable_that_the_node_has_not_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--hub_token refers to the variable TOKEN, which is not set on this node"):
        with_secrets(["--hub_token", "${TOKEN}"], {})
