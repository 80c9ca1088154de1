"""Logs of an attempt, page by page."""

from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from jobs.errors import ClusterError, JobLostError
from jobs.model import Attempt, AttemptState, Run
from jobs.service.log_archive import INTERVAL_S, DriverLogArchive
from jobs.service.logs import MAX_BYTES, read_logs
from jobs.service.run_folders import RunFolders
from tests.jobs.sample import sample_run
from trainers.errors import ConfigError, StorageError
from trainers.run_folder.attempt_status import driver_log_key, worker_log_key


def attempt_of(run: Run, state: AttemptState = AttemptState.ENDED) -> Attempt:
    return Attempt(run_id=run.id, number=1, submission_id=run.submission_id, state=state, gang=run.gang, created_s=0.0)


def silent() -> NoReturn:
    raise ClusterError("http://gone: no answer")


def written(folder: Path, key: str, content: bytes) -> Path:
    path = folder / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_line_longer_than_a_page_and_what_follows_it_come_whole(tmp_path: Path) -> None:
    run = sample_run(run_folder=str(tmp_path))
    line = "ž" * MAX_BYTES  # two bytes each
    written(tmp_path, driver_log_key(1), f"a{line}\nafter\n".encode())
    cursor, texts, ended = None, [], False
    while not ended:
        page = read_logs(RunFolders(), run, attempt_of(run), source=None, cursor=cursor, driver_log=silent)
        assert page.lines or page.ended
        texts += [item.text for item in page.lines]
        cursor, ended = page.cursor, page.ended
    assert "".join(texts) == f"a{line}after"
    assert texts[-1] == "after"


def test_a_live_attempt_s_last_line_is_shown_once_it_is_whole(tmp_path: Path) -> None:
    run = sample_run(run_folder=str(tmp_path))
    live = attempt_of(run, AttemptState.SUBMITTED)
    first = read_logs(RunFolders(), run, live, source=None, cursor=None, driver_log=lambda: b"one\ntw")
    assert ([item.text for item in first.lines], first.ended) == (["one"], False)
    then = read_logs(RunFolders(), run, live, source=None, cursor=first.cursor, driver_log=lambda: b"one\ntwo\n")
    assert [item.text for item in then.lines] == ["two"]


def test_logs_that_cannot_be_read_now_are_not_said_to_be_all(tmp_path: Path) -> None:
    run = sample_run(run_folder="gs://bucket/runs/sr")
    with pytest.raises(StorageError):
        read_logs(RunFolders(), run, attempt_of(run), source="driver", cursor=None, driver_log=silent)
    with pytest.raises(StorageError):
        read_logs(RunFolders(), run, attempt_of(run), source="rank-0", cursor=None, driver_log=silent)


def test_a_mistyped_source_is_refused(tmp_path: Path) -> None:
    run = sample_run(run_folder=str(tmp_path))
    with pytest.raises(ConfigError, match="unknown source 'rnak-0'"):
        read_logs(RunFolders(), run, attempt_of(run), source="rnak-0", cursor=None, driver_log=silent)


def test_the_cluster_is_asked_for_what_was_not_archived(tmp_path: Path) -> None:
    run = sample_run(run_folder=str(tmp_path))
    page = read_logs(RunFolders(), run, attempt_of(run), source=None, cursor=None, driver_log=lambda: b"kept by Ray\n")
    assert [item.text for item in page.lines] == ["kept by Ray"]


def test_who_read_further_than_the_archive_goes_gets_the_rest_from_the_cluster(tmp_path: Path) -> None:
    run = sample_run(run_folder=str(tmp_path))
    live = attempt_of(run, AttemptState.SUBMITTED)
    written(tmp_path, driver_log_key(1), b"one\n")
    page = read_logs(RunFolders(), run, live, source=None, cursor=None, driver_log=lambda: b"one\ntwo\n")
    rest = read_logs(
        RunFolders(), run, attempt_of(run), source=None, cursor=page.cursor, driver_log=lambda: b"one\ntwo\nthree\n"
    )
    assert [item.text for item in rest.lines] == ["three"]


def test_no_link_in_a_run_folder_leads_the_service_out_of_it(tmp_path: Path) -> None:
    secret = written(tmp_path, "secret", b"password\n")
    run = sample_run(run_folder=str(tmp_path / "run"))
    log = tmp_path / "run" / worker_log_key(1, 0, "g")
    log.parent.mkdir(parents=True)
    log.symlink_to(secret)
    with pytest.raises(StorageError, match="not followed"):
        read_logs(RunFolders(), run, attempt_of(run), source="rank-0", cursor=None, driver_log=silent)
    log.unlink()
    log.parent.rmdir()
    log.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="not followed"):
        RunFolders().write_driver_log(run, 1, b"printed\n")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("error", "tries"), [(JobLostError("a is not known"), 1), (ClusterError("no response"), 3)])
def test_a_log_that_its_cluster_has_forgotten_is_asked_for_once(
    tmp_path: Path, error: ClusterError, tries: int
) -> None:
    asked: list[str] = []

    def log(address: str, submission_id: str) -> bytes:
        asked.append(submission_id)
        raise error

    clusters: Any = SimpleNamespace(log=log)
    tick = count()
    archive = DriverLogArchive(clusters, RunFolders(), lambda: next(tick) * INTERVAL_S, lambda name: None)
    run = sample_run(run_folder=str(tmp_path))
    archive.archive_last(run, attempt_of(run))
    archive.retry_failed()
    archive.retry_failed()
    assert len(asked) == tries
