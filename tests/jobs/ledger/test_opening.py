import os
import socket
import stat
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from jobs.errors import ServiceError
from jobs.ledger import Ledger
from jobs.ledger.database import Database, parse
from tests.built_wheel import build_wheel
from tests.jobs.ledger.builders import add
from tests.jobs.ledger.ledger_process import ledger_process
from trainers.errors import ConfigError


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestMigrating:
    def test_what_is_there_stays_when_it_is_opened_again(self, ledger_url: str) -> None:
        for name in ("a", "b", "c"):
            ledger = Ledger.open(ledger_url)
            add(ledger, name)
            ledger.close()
        ledger = Ledger.open(ledger_url)
        assert [run.id for run in ledger.runs().runs] == ["c", "b", "a"]
        ledger.close()

    @pytest.mark.integration
    def test_processes_that_open_an_empty_database_at_once_share_it(self, ledger_url: str) -> None:
        names = ["a", "b", "c", "d"]
        with ExitStack() as stack:
            processes = [stack.enter_context(ledger_process(ledger_url, name)) for name in names]
            assert [process.receive() for process in processes] == ["ready"] * 4
            for process in processes:
                process.tell("")
            assert [process.receive() for process in processes] == ["open"] * 4
            assert [process.call(f"add {name}") for process, name in zip(processes, names, strict=True)] == names
        ledger = Ledger.open(ledger_url)
        assert {run.id for run in ledger.runs().runs} == set(names)
        ledger.close()

    def test_threads_that_open_several_databases_at_once_open_each(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(8) as pool:
            ledgers = list(pool.map(lambda number: Ledger.open(f"sqlite:///{tmp_path}/{number % 4}.db"), range(8)))
        for number, ledger in enumerate(ledgers):
            add(ledger, f"run-{number}")
            ledger.close()

    def test_steps_that_fail_leave_nothing_behind(self, ledger_url: str) -> None:
        if ledger_url.startswith("sqlite"):
            path_of(ledger_url).parent.mkdir(parents=True)
        engine = create_engine(parse(ledger_url))
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE tokens (name INTEGER)"))
        with pytest.raises(ServiceError, match="tokens"):
            Ledger.open(ledger_url)
        with engine.begin() as connection:
            assert inspect(connection).get_table_names() == ["tokens"]
            connection.execute(text("DROP TABLE tokens"))
        engine.dispose()
        Ledger.open(ledger_url).close()

    def test_a_ledger_of_another_version_is_left_alone(self, ledger_url: str) -> None:
        database = Database.open(ledger_url)
        with database.writing() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '2.0.0'"))
        with pytest.raises(ServiceError, match=r"another version of Rayscribe.*2\.0\.0.*install that version"):
            Ledger.open(ledger_url)
        database.close()


class TestSqlite:
    def test_only_its_owner_may_read_what_is_made(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            tmp_path.chmod(0o755)
            ledger = Ledger.open(f"sqlite:///{tmp_path}/one/two/ledger.db")
            add(ledger, "r")
            made = tmp_path / "one"
            assert {path.name for path in (made / "two").iterdir()} == {"ledger.db", "ledger.db-wal", "ledger.db-shm"}
            assert {mode_of(path) for path in (made / "two").iterdir()} == {0o600}
            assert (mode_of(made), mode_of(made / "two"), mode_of(tmp_path)) == (0o700, 0o700, 0o755)
            ledger.close()
        finally:
            os.umask(before)

    @pytest.mark.parametrize("name", ["a b", "100%", "#1", "říjen", "it's", "a&b=c"])
    def test_a_path_may_hold_any_sign(self, tmp_path: Path, name: str) -> None:
        url = f"sqlite:///{tmp_path}/{name}/{name}.db"
        ledger = Ledger.open(url)
        add(ledger, "r")
        ledger.close()
        assert ledger.url == url
        assert (tmp_path / name / f"{name}.db").is_file()

    def test_a_tilde_is_the_home_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        Ledger.open("sqlite:///~/ledger.db").close()
        assert (tmp_path / "ledger.db").is_file()

    def test_nothing_that_was_committed_is_lost_with_the_power(self, sqlite_url: str) -> None:
        database = Database.open(sqlite_url)
        with database.writing() as connection:
            pragmas = {
                name: connection.execute(text(f"PRAGMA {name}")).scalar_one()
                for name in ("journal_mode", "synchronous", "foreign_keys")
            }
        assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
        database.close()


class TestWriters:
    def test_a_writer_waits_for_another_and_readers_for_none(self, ledger: Ledger) -> None:
        other = Database.open(ledger.url)
        with ThreadPoolExecutor(1) as pool:
            with other.writing():
                waiting = pool.submit(add, ledger, "r")
                assert ledger.runs().runs == []
                assert not waiting.done()
            assert waiting.result() == ledger.run("r")
        other.close()

    def test_a_lock_that_is_not_given_up_is_an_error_that_passes(
        self, ledger_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jobs.ledger.database.LOCK_WAIT_S", 0.1)
        ledger, other = Ledger.open(ledger_url), Database.open(ledger_url)
        with other.writing(), pytest.raises(ServiceError, match=r"does not respond.*(is locked|lock timeout)"):
            add(ledger, "r")
        add(ledger, "r")
        ledger.close()
        other.close()


class TestRefusals:
    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("", "not a URL"),
            ("ledger.db", "not a URL"),
            ("/var/lib/ledger.db", "not a URL"),
            ("sqlite://", "not a file's path"),
            ("sqlite:///", "not a file's path"),
            ("sqlite:///:memory:", "not a file's path"),
            ("sqlite:///file:x?mode=memory&uri=true", "not a file's path"),
            ("sqlite://host/x.db", "not a file's path"),
            ("sqlite:///var/lib/ledger.db", "a relative path; an absolute one has four slashes: sqlite:////"),
            ("mysql://u:hush@h/d", "the ledger's database is mysql://u:***@h/d; write"),
            ("postgresql://u:hush@h:port/d", "not a URL"),
            ("postgresql+asyncpg://u:hush@h/d", "the ledger's database is postgresql+asyncpg://u:***@h/d; write"),
        ],
    )
    def test_what_is_no_url_of_a_ledger_is_refused_with_the_forms(self, url: str, words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            Ledger.open(url)
        assert words in str(caught.value)
        assert "sqlite:////" in str(caught.value)
        assert "hush" not in str(caught.value)

    @pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
    @pytest.mark.parametrize(
        ("login", "query"),
        [("ana:hush@", ""), ("ana:h%40u%2Fsh@", ""), ("ana@", "&password=hush&sslpassword=hush")],
    )
    def test_a_password_is_never_shown(self, scheme: str, login: str, query: str) -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{nobody.getsockname()[1]}/ledger"
            with pytest.raises(ServiceError) as caught:
                Ledger.open(f"{scheme}://{login}{place}?connect_timeout=5{query}")
        message = str(caught.value)
        assert f"@{place}" in message and "***" in message
        assert "postgresql://ana" in message
        assert "check that the server is up" in message
        assert not any(secret in message for secret in ("hush", "h%40u", "h@u"))

    def test_a_ledger_shows_its_url_without_the_password(self, postgres_url: str) -> None:
        ledger = Ledger.open(postgres_url.replace("rayscribe@", "rayscribe:hush@"))
        assert ledger.url == postgres_url.replace("rayscribe@", "rayscribe:***@")
        ledger.close()

    def test_a_database_that_is_not_there_is_named(self, postgres_url: str) -> None:
        with pytest.raises(ServiceError, match=r'/nowhere does not respond.*"nowhere" does not exist.*database exists'):
            Ledger.open(postgres_url.rpartition("/")[0] + "/nowhere")

    def test_a_file_that_is_no_database_stays_as_it_is(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("dear diary, " * 1000)
        with pytest.raises(ServiceError, match=r"notes\.txt does not respond: file is not a database"):
            Ledger.open(f"sqlite:///{path}")
        assert path.read_text() == "dear diary, " * 1000

    def test_a_folder_in_the_file_s_place_or_a_file_in_a_folder_s_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for path in (tmp_path, tmp_path / "file" / "ledger.db"):
            with pytest.raises(ServiceError, match=r"does not respond.*check that the file and its folder"):
                Ledger.open(f"sqlite:///{path}")


@pytest.mark.integration
def test_an_installed_wheel_brings_its_steps_wherever_it_lies(tmp_path: Path, sqlite_url: str) -> None:
    place = tmp_path / "50% off, here"
    wheel = build_wheel(tmp_path / "build")
    zipfile.ZipFile(wheel).extractall(place)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import rayscribe.jobs.ledger as l; "
        "print(l.__file__); print(l.Ledger.open(sys.argv[2]).runs().runs)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(place), sqlite_url],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == [str(place / "rayscribe" / "jobs" / "ledger" / "__init__.py"), "[]"]
