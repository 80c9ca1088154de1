import base64
import sqlite3
from pathlib import Path

import pytest

from jobs.errors import ConflictError, NotFoundError
from jobs.ledger import Ledger, TokenInfo
from trainers.errors import ConfigError


def test_a_token_says_whose_it_is(ledger: Ledger) -> None:
    tokens = {name: ledger.tokens.add(name, 5.0) for name in ("ana", "ben")}
    assert [ledger.tokens.user_of(tokens[name]) for name in ("ana", "ben")] == ["ana", "ben"]
    assert ledger.tokens.all() == [TokenInfo(name="ana", created_s=5.0), TokenInfo(name="ben", created_s=5.0)]


def test_a_token_has_256_random_bits(ledger: Ledger) -> None:
    first, second = ledger.tokens.add("ana", 1.0), ledger.tokens.add("ben", 1.0)
    assert first != second
    for token in (first, second):
        assert token.startswith("rsk_")
        assert len(base64.urlsafe_b64decode(token.removeprefix("rsk_") + "=")) == 32


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: t + "x", str.upper, lambda t: t[4:], lambda t: ""])
def test_what_is_not_exactly_a_token_is_nobody_s(ledger: Ledger, change: object) -> None:
    assert callable(change)
    assert ledger.tokens.user_of(change(ledger.tokens.add("ana", 1.0))) is None


def test_a_revoked_token_is_worthless_and_its_name_free(ledger: Ledger) -> None:
    old = ledger.tokens.add("ana", 1.0)
    ledger.tokens.revoke("ana")
    assert (ledger.tokens.user_of(old), ledger.tokens.all()) == (None, [])
    new = ledger.tokens.add("ana", 2.0)
    assert (ledger.tokens.user_of(old), ledger.tokens.user_of(new)) == (None, "ana")


def test_a_name_has_one_token(ledger: Ledger) -> None:
    token = ledger.tokens.add("ana", 1.0)
    with pytest.raises(ConflictError, match="ana has a token already: revoke"):
        ledger.tokens.add("ana", 2.0)
    assert ledger.tokens.user_of(token) == "ana"


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a" * 101])
def test_what_is_no_name_has_no_token(ledger: Ledger, name: str) -> None:
    with pytest.raises(ConfigError, match="is not valid: use 1 to 100 printable characters"):
        ledger.tokens.add(name, 1.0)


def test_revoking_a_name_that_is_not_there_says_near_ones(ledger: Ledger) -> None:
    ledger.tokens.add("anna", 1.0)
    with pytest.raises(NotFoundError, match=r"no token is named ana: did you mean anna\?"):
        ledger.tokens.revoke("ana")
    assert len(ledger.tokens.all()) == 1


def test_the_file_does_not_hold_the_token(sqlite_url: str) -> None:
    ledger, path = Ledger.open(sqlite_url), Path(sqlite_url.removeprefix("sqlite:///"))
    token = ledger.tokens.add("ana", 1.0)
    files = b"".join(file.read_bytes() for file in path.parent.iterdir())
    ledger.close()
    assert b"ana" in files
    assert token.encode() not in files and token.removeprefix("rsk_").encode() not in files
    with sqlite3.connect(path) as connection:
        ((name, digest),) = connection.execute("SELECT name, sha256 FROM tokens").fetchall()
    assert (name, len(digest)) == ("ana", 64)
