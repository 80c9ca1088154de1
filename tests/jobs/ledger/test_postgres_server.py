from pathlib import Path

import psycopg
import pytest

from tests.postgres import MISSING, PostgresServer, find_binaries, running_server


def programs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch(0o755)
    return folder


def test_the_newest_packaged_server_is_found(tmp_path: Path) -> None:
    for version in ("9.6", "15", "16"):
        programs(tmp_path / version / "bin", "postgres", "initdb")
    programs(tmp_path / "17" / "bin", "psql")
    assert find_binaries([], tmp_path) == tmp_path / "16" / "bin"


def test_one_on_the_path_comes_first_and_a_link_leads_to_its_siblings(tmp_path: Path) -> None:
    programs(tmp_path / "packaged" / "16" / "bin", "postgres", "initdb")
    own, links = programs(tmp_path / "own", "postgres", "initdb", "psql"), tmp_path / "links"
    links.mkdir()
    for name in ("postgres", "initdb"):
        (links / name).symlink_to(own / name)
    assert find_binaries(["", str(tmp_path / "absent"), str(links)], tmp_path / "packaged") == own


def test_where_there_is_none_a_test_fails_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_binaries([str(tmp_path)], tmp_path) is None
    monkeypatch.setattr("tests.postgres.find_binaries", lambda *_: None)
    with pytest.raises(pytest.fail.Exception, match="apt-get install postgresql"), running_server():
        pass
    assert "apt-get install postgresql" in MISSING


def test_a_server_keeps_its_port_and_its_data_over_a_restart(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_schema()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept (number INTEGER)")
    postgres_server.stop()
    try:
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
    finally:
        postgres_server.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
