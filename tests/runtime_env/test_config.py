from typing import Any

import pytest
from pydantic import ValidationError

from runtime_env.config import RuntimeEnvPart, SecretRef
from runtime_env.credentials import masked

PASSWORD = "hunter2-very-secret"
TOKEN = "hf_" + "a1B2" * 8
# As a line, YAML, a dict, JSON, and JSON within a text.
HEADERS = (
    "Authorization: Bearer %s",
    "Authorization: ApiKey %s",
    'Authorization: "Bearer %s"',
    "{'Authorization': 'Bearer %s'}",
    '{"Authorization": "Bearer %s"}',
    '"{\\"authorization\\":\\"Basic %s\\"}"',
)


def faults_of(**fields: Any) -> str:
    """The message of what must be refused; the whole error, as anybody might print it."""
    with pytest.raises(ValidationError) as caught:
        RuntimeEnvPart.model_validate(fields)
    assert len(caught.value.errors()) == 1
    return str(caught.value)


def test_nothing_has_to_be_said() -> None:
    part = RuntimeEnvPart()
    assert (part.tool, part.packages, part.index_references, part.secrets) == (None, None, [], {})


def test_a_part_survives_being_written_and_read() -> None:
    part = RuntimeEnvPart.model_validate(
        {
            "pip": ["tiny==1"],
            "index_url": "https://${INDEX_USER}:${INDEX_PASSWORD}@packages.example/simple",
            "env_vars": {"OMP_NUM_THREADS": 4},
            "secrets": {"WANDB_API_KEY": {"env": "TEAM_KEY"}, "HF_TOKEN": {"file": "/etc/hf"}},
        }
    )
    assert part.env_vars == {"OMP_NUM_THREADS": "4"}
    assert RuntimeEnvPart.model_validate(part.model_dump(mode="json")) == part


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{PASSWORD}@packages.example/simple",
        f"https://{PASSWORD}@packages.example/simple",
        f"https://${{INDEX_USER}}:{PASSWORD}@packages.example/simple",
        f"https://user:${{X}}{PASSWORD}@packages.example/simple",
        f"https://user:{PASSWORD}/with-slash@packages.example/simple",
        f"https://user:{PASSWORD}#x@packages.example/simple",
        f"https://packages.example/simple?token={PASSWORD}",
    ],
)
def test_literal_credentials_are_refused_and_not_repeated(url: str) -> None:
    for fields in (
        {"pip": ["x"], "index_url": url},
        {"uv": ["x"], "extra_index_urls": [url]},
        {"pip": [f"--index-url {url}", "x"]},
        {"uv": [f"x @ {url}/x-1-py3-none-any.whl"]},
        {"env_vars": {"INDEX": url}},
    ):
        message = faults_of(**fields)
        assert "not shown" in message
        assert PASSWORD not in message


@pytest.mark.parametrize(
    "url",
    [
        "https://packages.example/simple",
        "http://10.0.0.1:8080/simple",
        "https://[::1]:8080/simple",
        "https://${INDEX_TOKEN}@packages.example/simple",
        "https://__token__:${INDEX_TOKEN}@packages.example/simple",
        "https://${INDEX_USER}:${INDEX_PASSWORD}@packages.example:${INDEX_PORT}/simple",
        "https://packages.example/simple?token=${INDEX_TOKEN}",
    ],
)
def test_references_are_welcome(url: str) -> None:
    RuntimeEnvPart.model_validate({"pip": ["x"], "index_url": url, "extra_index_urls": [url]})


def test_names_that_pip_takes_for_its_settings_are_refused() -> None:
    message = faults_of(pip=["x"], index_url="https://${PIP_USER}:${PIP_PASSWORD}@packages.example/simple")
    assert "PIP_USER is pip's --user" in message
    assert "INDEX_USER" in message


@pytest.mark.parametrize("url", ["https://${index_user}@x/simple", "https://$INDEX@x/simple"])
def test_references_that_pip_would_not_replace_are_refused(url: str) -> None:
    message = faults_of(pip=["x"], index_url=url)
    assert "not shown" in message or "pip and uv replace only" in message


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "db_password",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASS",
        "IPAD_TOKEN",
        "AZURE_STORAGE_CONNECTION_STRING",
    ],
)
def test_a_variable_whose_name_says_secret_is_refused(name: str) -> None:
    message = faults_of(env_vars={name: PASSWORD})
    assert f"env_vars.{name} looks like a secret" in message
    assert f"job.runtime_env.secrets, e.g. {name}: {{env: {name}}}" in message
    assert PASSWORD not in message


@pytest.mark.parametrize(
    "value",
    [
        TOKEN,
        "-----BEGIN RSA PRIVATE KEY-----\nabc",
        "postgresql://u:hunter2@db/x",
        "ghp_" + "a" * 36,
        "AKIA" + "A" * 16,
        "DefaultEndpointsProtocol=https;AccountName=speech;AccountKey="
        + "A" * 86
        + "==;EndpointSuffix=core.windows.net",
        *(header % PASSWORD for header in HEADERS),
    ],
)
def test_a_value_that_looks_like_a_secret_is_refused(value: str) -> None:
    message = faults_of(env_vars={"HARMLESS": value})
    assert "the value of env_vars.HARMLESS looks like a secret" in message
    assert value not in message
    assert "hunter2" not in message


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("token", [PASSWORD, "aHVudGVyMg\\/=="])
def test_the_token_of_a_header_is_masked_and_nothing_else(header: str, token: str) -> None:
    said = masked(f"curl failed: {header % token} (403)")
    assert "aHVudGVyMg" not in said and "hunter2" not in said and "/" not in said
    assert said.startswith(f"curl failed: {header.partition('%s')[0]}…") and said.endswith(" (403)")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "100"),
        ("HF_TOKEN_PATH", "/etc/hf/token"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token"),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/google.json"),
        ("KEYBOARD", "qwerty"),
        ("S3_ENDPOINT", "http://127.0.0.1:9000"),
        ("COMPASS", "north"),
        ("EOS_TOKEN", "</s>"),
        *(("HEADER", header % "$HF") for header in HEADERS),
        ("HEADER", '{"Authorization": "Bearer <token>"}'),
        ("TEXT", "Authorization: by token"),
    ],
)
def test_plain_variables_are_plain(name: str, value: str) -> None:
    assert RuntimeEnvPart.model_validate({"env_vars": {name: value}}).env_vars == {name: value}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"pip": ["a"], "uv": ["b"]}, "pip and uv exclude each other"),
        ({"pip": []}, "pip is an empty list"),
        ({"uv": ""}, "uv is empty"),
        ({"pip": ["a\nb"]}, "line break"),
        ({"index_url": "https://x/simple"}, "do nothing without pip or uv"),
        ({"pip": ["a"], "index_url": "packages.example"}, "is not a URL"),
        ({"pip": ["a", "-i https://x/simple"], "index_url": "https://x/simple"}, "keep one of them"),
        ({"pip": ["-r more.txt"]}, "job.runtime_env.pip: more.txt"),
        ({"pip": ["-c pins.txt", "a"]}, "--constraint names a file that the nodes do not have"),
        ({"uv": ["-e ."]}, "--editable names a file that the nodes do not have"),
        ({"pip": ["./package"]}, "nodes cannot install from a local path"),
        ({"pip": ["a", "git+https://${GIT_TOKEN}@github.com/x/y"]}, "command line of git"),
        ({"pip": ["a", "--no-binary a"], "index_url": "https://${T}@x/simple"}, "pip installs only wheels"),
        ({"pip": ["a @ https://x/a.tar.gz"], "index_url": "https://${T}@x/simple"}, "use job.runtime_env.uv"),
        ({"pip": ["git+https://github.com/x/y"], "index_url": "https://${T}@x/simple"}, "use job.runtime_env.uv"),
        ({"uv": ["--trusted-host x", "a"]}, "UV_INSECURE_HOST"),
        ({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "1"}}, "use job.stop_grace_s"),
        ({"env_vars": {"A": "x\0"}}, "NUL byte"),
        ({"env_vars": {"A": "1"}, "secrets": {"A": {"env": "B"}}}, "keep one"),
        ({"secrets": {"A": {"env": "B"}, "B": {"env": "C"}}}, "secrets.A is taken from B"),
        ({"secrets": {"A": {"env": "B", "file": "/b"}}}, "give one of env"),
        ({"secrets": {"A": {}}}, "give one of env"),
        ({"secrets": {"A": {"file": "relative"}}}, "absolute path"),
        ({"secrets": {"A": {"file": "/$HOME/x"}}}, "without \\$"),
        ({"secrets": {"A": {"env": TOKEN}}}, "not the secret itself"),
        ({"image_uri": "x:1", "pip": ["a"]}, "image_uri and pip exclude each other"),
        ({"image_uri": "x:1", "working_dir": "."}, "image_uri and working_dir exclude each other"),
        ({"image_uri": "x:1", "env_vars": {"A": "it's"}}, "does not quote"),
    ],
)
def test_what_cannot_work_is_said_with_the_way_out(fields: dict[str, Any], says: str) -> None:
    message = faults_of(**fields)
    assert says.replace("\\", "") in message
    assert TOKEN not in message


def test_a_secret_written_instead_of_a_reference_is_not_repeated() -> None:
    with pytest.raises(ValidationError) as caught:
        RuntimeEnvPart.model_validate({"secrets": {"HF_TOKEN": TOKEN}})
    assert TOKEN not in str(caught.value)


def test_uv_may_build_from_source_beside_references() -> None:
    part = RuntimeEnvPart.model_validate({"uv": ["a @ https://x/a.tar.gz"], "index_url": "https://${T}@x/simple"})
    assert part.index_references == ["T"]


def test_a_secret_may_keep_its_name() -> None:
    part = RuntimeEnvPart.model_validate({"secrets": {"HF_TOKEN": {"env": "HF_TOKEN"}}})
    assert part.secrets == {"HF_TOKEN": SecretRef(env="HF_TOKEN")}
