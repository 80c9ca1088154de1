import os
from pathlib import Path

import pytest

from trainers.distributed.ray_connection import set_own_token

VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, and nothing of Ray's in the environment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in VARIABLES:
        # Set first, so that monkeypatch removes what the function sets.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return tmp_path


def test_a_local_ray_gets_a_token_of_its_own(home: Path) -> None:
    set_own_token()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("name", VARIABLES)
def test_a_token_in_the_environment_stays_in_use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "chosen")
    set_own_token()
    assert {each: os.environ[each] for each in VARIABLES if each in os.environ} == {name: "chosen"}


def test_a_token_file_of_the_user_stays_in_use(home: Path) -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("chosen")
    set_own_token()
    assert "RAY_AUTH_TOKEN" not in os.environ
