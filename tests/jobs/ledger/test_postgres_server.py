from pathlib import Path

import psycopg
import pytest

from tests.postgres import PostgresServer, running_server


def test_where_there_is_none_a_test_fails_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.postgres.NODE_PACKAGES", tmp_path)
    with pytest.raises(pytest.fail.Exception, match="make setup"), running_server():
        pass


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
