import json
from pathlib import Path
from typing import Any

import pytest

from trainers.config.secrets import MAX_BYTES, REFERENCES, resolve_secrets
from trainers.errors import ConfigError

VALUE = "value-that-nobody-may-see"


def environment(references: Any, **others: str) -> dict[str, str]:
    return {REFERENCES: json.dumps(references), **others}


def test_without_references_nothing_changes() -> None:
    for before in ({}, {"A": "1"}, {REFERENCES: ""}):
        after = dict(before)
        resolve_secrets(after)
        assert after == before


def test_a_variable_of_the_node_is_found_under_the_job_s_name() -> None:
    here = environment(
        {"WANDB_API_KEY": {"env": "TEAM_KEY"}, "HF_TOKEN": {"env": "HF_TOKEN"}}, TEAM_KEY="a", HF_TOKEN="b"
    )
    resolve_secrets(here)
    assert (here["WANDB_API_KEY"], here["HF_TOKEN"], here["TEAM_KEY"]) == ("a", "b", "a")


@pytest.mark.parametrize("written", [VALUE, f"{VALUE}\n", f"{VALUE}\r\n"])
def test_a_file_of_the_node_is_read_without_its_last_line_break(tmp_path: Path, written: str) -> None:
    (tmp_path / "token").write_bytes(written.encode())
    here = environment({"HF_TOKEN": {"file": str(tmp_path / "token")}})
    resolve_secrets(here)
    assert here["HF_TOKEN"] == VALUE


def test_only_the_last_line_break_is_no_part_of_the_secret(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("first\nsecond\n\n")
    here = environment({"KEY": {"file": str(tmp_path / "key")}})
    resolve_secrets(here)
    assert here["KEY"] == "first\nsecond\n"


def test_doing_it_again_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    here = environment({"A": {"env": "B"}, "C": {"file": str(tmp_path / "token")}, "D": {"env": "D"}}, B="b", D="d")
    resolve_secrets(here)
    once = dict(here)
    resolve_secrets(here)
    assert here == once


def test_a_secret_overrides_what_the_node_has_under_its_name() -> None:
    here = environment({"A": {"env": "B"}}, A="old", B="new")
    resolve_secrets(here)
    assert here["A"] == "new"


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff", b"a\0b", b"x" * (MAX_BYTES + 1)])
def test_a_file_that_holds_no_secret_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    here = environment({"OTHER": {"env": "THERE"}, "HF_TOKEN": {"file": str(path)}}, THERE=VALUE)
    with pytest.raises(ConfigError, match=r"job\.runtime_env\.secrets\.HF_TOKEN refers to .*/token") as caught:
        resolve_secrets(here)
    assert "OTHER" not in here
    assert VALUE not in str(caught.value)
    assert "xxxx" not in str(caught.value)


@pytest.mark.parametrize("there", [{}, {"TEAM_KEY": ""}])
def test_a_variable_that_the_node_lacks_is_named_with_the_fix(there: dict[str, str]) -> None:
    here = environment({"OTHER": {"env": "THERE"}, "WANDB_API_KEY": {"env": "TEAM_KEY"}}, THERE=VALUE, **there)
    with pytest.raises(
        ConfigError, match=r"secrets\.WANDB_API_KEY refers to the variable TEAM_KEY.*Ray runs on every node"
    ):
        resolve_secrets(here)
    assert "OTHER" not in here


def test_a_source_that_would_be_overwritten_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"secrets\.A is taken from B, which is a secret too"):
        resolve_secrets(environment({"A": {"env": "B"}, "B": {"env": "C"}}, B="b", C="c"))


@pytest.mark.parametrize(
    "text",
    [VALUE, "[]", '{"A": "' + VALUE + '"}', '{"A": {}}', '{"A": {"env": 1}}', '{"A": {"env": "B", "file": "/c"}}'],
)
def test_references_that_are_none_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError, match=r"leave it to job\.runtime_env\.secrets") as caught:
        resolve_secrets({REFERENCES: text})
    assert VALUE not in str(caught.value)
