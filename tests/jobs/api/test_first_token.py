"""The first token: created once, readable by its owner only, and never logged."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.api.server.process import create_first_token
from jobs.ledger import Ledger
from jobs.paths import hosts_of_token
from trainers.errors import ConfigError


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield ledger
    ledger.close()


def test_it_opens_the_door_and_only_its_owner_reads_it(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "home" / "token"
    line = create_first_token(ledger, path, "ana", 1.0, ["node-1", "10.0.0.1"])
    token = path.read_text().strip()
    assert ledger.tokens.user_of(token) == "ana"
    assert line is not None
    assert str(path) in line
    assert token not in line
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sorted(item.name for item in path.parent.iterdir()) == ["token", "token.hosts"]
    assert hosts_of_token(path) == ["node-1", "10.0.0.1"]


def test_a_ledger_with_tokens_gets_no_other(ledger: Ledger, tmp_path: Path) -> None:
    ledger.tokens.add("bo", 1.0)
    line = create_first_token(ledger, tmp_path / "token", "ana", 1.0)
    assert line == "there are tokens for bo; create yours with `rayscribe token add ana` and set RAYSCRIBE_TOKEN"
    assert not (tmp_path / "token").exists()
    assert create_first_token(ledger, tmp_path / "token", "bo", 1.0) is None


def test_the_token_of_another_service_is_kept_beside_it(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("rsk_other\n")
    line = create_first_token(ledger, path, "ana", 1.0)
    assert line is not None
    assert "token.before" in line
    assert (tmp_path / "token.before").read_text() == "rsk_other\n"
    assert ledger.tokens.user_of(path.read_text().strip()) == "ana"


def test_no_token_is_made_where_none_can_be_kept(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="RAYSCRIBE_HOME"):
        create_first_token(ledger, tmp_path / "file" / "token", "ana", 1.0)
    assert ledger.tokens.all() == []
