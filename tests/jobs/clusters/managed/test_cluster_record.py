"""What this machine remembers of clusters, and what is meant where none is named."""

import stat
from pathlib import Path

import pytest

from jobs.clusters.managed.cluster_record import (
    RECORDS,
    Record,
    all_records,
    default_address,
    ensure_token,
    find_record,
    is_local_address,
    read_record,
    record_at,
    the_only_record,
)
from jobs.errors import NotFoundError
from tests.jobs.control_store import living_ray
from trainers.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has started nothing."""
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


def remember(name: str, **fields: object) -> Record:
    record = RECORDS.validate_python({"name": name, "kind": "ray-up", "created_s": 1.0, **fields})
    record.write()
    return record


def test_only_the_user_may_read_what_is_remembered(home: Path) -> None:
    remember("hosts")
    token = ensure_token("hosts")
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in (home / "clusters").iterdir()} == {
        "hosts.json": 0o600,
        "hosts.token": 0o600,
    }
    assert stat.S_IMODE((home / "clusters").stat().st_mode) == 0o700
    assert len(token.read_text()) == 64
    assert token.read_text() not in (home / "clusters" / "hosts.json").read_text()


def test_a_token_is_made_once_and_goes_with_its_cluster() -> None:
    record = remember("hosts")
    token = ensure_token("hosts").read_text()
    assert ensure_token("hosts").read_text() == token
    record.files.mkdir()
    record.forget()
    assert (find_record("hosts"), record.token_path.exists(), record.files.exists()) == (None, False, True)
    assert ensure_token("hosts").read_text() != token


def test_a_run_that_names_no_cluster_goes_to_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_address() is None
    remember("hosts")
    assert default_address() == "cluster://hosts"
    assert the_only_record().name == "hosts"
    remember("cloud")
    assert default_address() is None
    with pytest.raises(NotFoundError, match="name one of the clusters cloud, hosts"):
        the_only_record()
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265/")
    assert default_address() == "http://head:8265"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://other:8265")
    assert default_address() == "http://other:8265"


def test_what_drivers_join_takes_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert default_address() is None


def test_a_ray_of_this_machine_is_known_by_both_of_its_addresses_while_it_lives(tmp_path: Path) -> None:
    addresses = {"dashboard": "http://127.0.0.1:20001", "address": "127.0.0.1:20002"}
    remember("died", kind="local", folder=tmp_path / "died", **addresses)
    record = remember("local", kind="local", folder=tmp_path / "ray", **addresses)
    remember("hosts")
    with living_ray(tmp_path / "ray"):
        assert record_at("http://127.0.0.1:20001/") == record_at("127.0.0.1:20002") == record
        assert record_at("http://127.0.0.1:8265") is None
    assert record_at("http://127.0.0.1:20001/") is None
    assert is_local_address("cluster://local")
    assert not is_local_address("cluster://hosts")
    assert is_local_address("http://127.0.0.1:8265")


def test_names_that_are_no_files_and_files_that_are_no_records_are_refused(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"'\.\./x' cannot name a cluster"):
        find_record("../x")
    with pytest.raises(NotFoundError, match=r"no cluster is named x on this machine \(known: none\)"):
        read_record("x")
    remember("x")
    (home / "clusters" / "x.json").write_text("{")
    with pytest.raises(ConfigError, match=r"x\.json cannot be read"):
        all_records()
