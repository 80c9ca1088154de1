"""Logs of an attempt, page by page."""

import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from jobs.errors import ClusterError, JobLostError
from jobs.model import Attempt, AttemptState, Run, submission_id_of
from jobs.service import log_archive, logs
from jobs.service.log_archive import END_WAIT_S, INTERVAL_S, DriverLogArchive
from jobs.service.logs import MAX_BYTES, ReadPart, read_logs
from jobs.service.run_folders import RunFolders
from tests.jobs.ledger.builders import wait_until
from tests.jobs.sample import sample_run
from trainers.errors import ConfigError, StorageError
from trainers.run_folder.attempt_status import driver_log_key, status_key, worker_log_key


def attempt_of(run: Run, state: AttemptState = AttemptState.ENDED) -> Attempt:
    return Attempt(
        run_id=run.id,
        number=1,
        submission_id=submission_id_of(run.id, run.attempt),
        state=state,
        gang=run.gang,
        created_s=0.0,
    )


def silent(start: int, size: int) -> NoReturn:
    raise ClusterError("http://gone: no answer")


def printing(text: bytes) -> ReadPart:
    """A driver that has printed this so far."""
    return lambda start, size: text[start : start + size]


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


def test_a_page_has_a_limit_of_lines_and_of_bytes_over_all_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 40)
    monkeypatch.setattr(logs, "MAX_PAGE_BYTES", 80)
    monkeypatch.setattr(logs, "MAX_LINES", 6)
    run = sample_run(run_folder=str(tmp_path))
    for rank in range(5):
        written(tmp_path, worker_log_key(1, rank, "g"), b"\n" * 8 + b"x" * 30 + b"\n" + b"y" * 30 + b"\nlast\n")
    written(tmp_path, driver_log_key(1), b"\n" * 6)
    cursor, found, ended = None, [], False
    while not ended:
        page = read_logs(RunFolders(), run, attempt_of(run), source=None, cursor=cursor, driver_log=silent)
        assert page.lines or page.ended
        assert len(page.lines) <= 6
        found += [(item.source, item.text) for item in page.lines]
        cursor, ended = page.cursor, page.ended
    lines = ["", "", "", "", "", "", "", "", "x" * 30, "y" * 30, "last"]
    assert sorted(found) == sorted(
        [("driver", "")] * 6 + [(f"rank-{rank}", line) for rank in range(5) for line in lines]
    )


def test_a_cursor_beyond_any_log_is_refused(tmp_path: Path) -> None:
    run = sample_run(run_folder=str(tmp_path))
    cursor = logs._cursor_of({"driver": 10**30})
    with pytest.raises(ConfigError, match="was not returned by a page of logs"):
        read_logs(RunFolders(), run, attempt_of(run), source=None, cursor=cursor, driver_log=silent)


def test_a_live_attempt_s_last_line_is_shown_once_it_is_whole(tmp_path: Path) -> None:
    run = sample_run(run_folder=str(tmp_path))
    live = attempt_of(run, AttemptState.SUBMITTED)
    first = read_logs(RunFolders(), run, live, source=None, cursor=None, driver_log=printing(b"one\ntw"))
    assert ([item.text for item in first.lines], first.ended) == (["one"], False)
    then = read_logs(RunFolders(), run, live, source=None, cursor=first.cursor, driver_log=printing(b"one\ntwo\n"))
    assert [item.text for item in then.lines] == ["two"]


def test_logs_that_cannot_be_read_now_are_not_said_to_be_all(tmp_path: Path) -> None:
    run = sample_run(run_folder="hdfs://bucket/runs/sr")
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
    page = read_logs(
        RunFolders(), run, attempt_of(run), source=None, cursor=None, driver_log=printing(b"kept by Ray\n")
    )
    assert [item.text for item in page.lines] == ["kept by Ray"]


def test_who_read_further_than_the_archive_goes_gets_the_rest_from_the_cluster(tmp_path: Path) -> None:
    run = sample_run(run_folder=str(tmp_path))
    live = attempt_of(run, AttemptState.SUBMITTED)
    written(tmp_path, driver_log_key(1), b"one\n")
    page = read_logs(RunFolders(), run, live, source=None, cursor=None, driver_log=printing(b"one\ntwo\n"))
    rest = read_logs(
        RunFolders(), run, attempt_of(run), source=None, cursor=page.cursor, driver_log=printing(b"one\ntwo\nthree\n")
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
        RunFolders().write_driver_log(run, 1, 0, b"printed\n")
    assert not (tmp_path / "elsewhere").exists()


def test_links_in_a_circle_are_no_error_of_the_service(tmp_path: Path) -> None:
    run, folders = sample_run(run_folder=str(tmp_path)), RunFolders()
    for key in (status_key(1), "journal", driver_log_key(1)):
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(path.name)
    assert folders.progress(run, 1) is None
    assert "Too many levels of symbolic links" in folders.left_text(run)
    with pytest.raises(StorageError, match="Too many levels of symbolic links"):
        read_logs(folders, run, attempt_of(run), source=None, cursor=None, driver_log=silent)
    folders.write_driver_log(run, 1, 0, b"printed\n")
    assert (tmp_path / driver_log_key(1)).read_bytes() == b"printed\n"


class LongLog:
    """Clusters of which one has a job that printed much, and that answers when it is let."""

    def __init__(self, text: bytes):
        self.text, self.asked, self.slow, self.answers = text, 0, False, threading.Event()

    def log(self, address: str, submission_id: str, start: int, size: int, *, last_lines: int | None = None) -> bytes:
        if last_lines is not None:
            return b"".join(self.text.splitlines(keepends=True)[-last_lines:])[:size]
        self.asked += 1
        if self.slow:
            self.answers.wait()
        return self.text[start : start + size]


def archive_of(clusters: Any, clock: Callable[[], float] = lambda: 0.0) -> DriverLogArchive:
    return DriverLogArchive(clusters, RunFolders(), clock, lambda name: None)


def all_pages(run: Run) -> list[str]:
    cursor, texts, ended = None, [], False
    while not ended:
        page = read_logs(RunFolders(), run, attempt_of(run), source=None, cursor=cursor, driver_log=silent)
        texts += [item.text for item in page.lines]
        cursor, ended = page.cursor, page.ended
    return texts


def test_a_long_log_is_archived_in_pieces_as_it_grows_and_read_by_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        (log_archive, "PIECE_BYTES", 1000),
        (logs, "PIECE_BYTES", 1000),
        (logs, "MAX_BYTES", 700),
    ):
        monkeypatch.setattr(module, name, value)
    lines = [f"line {number}" for number in range(500)]
    run, tick = sample_run(run_folder=str(tmp_path)), count()
    source = LongLog("\n".join(lines[:200]).encode())
    archive = archive_of(source, lambda: next(tick) * INTERVAL_S)
    archive.archive(run, attempt_of(run))
    first = tmp_path / driver_log_key(1)
    written_ns = first.stat().st_mtime_ns
    source.text = ("\n".join(lines) + "\n").encode()
    archive.archive(run, attempt_of(run))
    assert first.stat().st_mtime_ns == written_ns, "a complete piece is written once"
    assert archive.archive_last(run, attempt_of(run))
    assert all_pages(run) == lines


def test_of_a_log_without_bounds_the_start_and_the_last_lines_are_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (log_archive, logs):
        monkeypatch.setattr(module, "PIECE_BYTES", 1000)
        monkeypatch.setattr(module, "MAX_DRIVER_BYTES", 2000)
    monkeypatch.setattr(log_archive, "LAST_LINES", 3)
    run = sample_run(run_folder=str(tmp_path))
    source = LongLog(b"".join(b"line %05d\n" % number for number in range(1000)))
    live = read_logs(
        RunFolders(),
        run,
        attempt_of(run, AttemptState.SUBMITTED),
        source=None,
        cursor=None,
        driver_log=printing(source.text),
    )
    assert archive_of(source).archive_last(run, attempt_of(run))
    texts = all_pages(run)
    assert texts[: len(live.lines)] == [item.text for item in live.lines]
    assert texts[0] == "line 00000" and texts[-3:] == ["line 00997", "line 00998", "line 00999"]
    assert any(text.startswith("--- only the first") for text in texts)
    assert sum(map(len, texts)) < 2200


def test_a_slow_log_delays_neither_a_round_nor_for_long_the_end_of_its_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_archive, "ROUND_WAIT_S", 0.05)
    now_s = [0.0]
    run, source = sample_run(run_folder=str(tmp_path)), LongLog(b"printed\n")
    source.slow = True
    archive = archive_of(source, lambda: now_s[0])
    archive.begin_round()
    assert not archive.archive_last(run, attempt_of(run))
    archive.begin_round()
    assert not archive.archive_last(run, attempt_of(run)), "it goes on"
    now_s[0] += END_WAIT_S
    assert archive.archive_last(run, attempt_of(run)), "the attempt waits no longer"
    assert source.asked == 1
    source.answers.set()
    wait_until((tmp_path / driver_log_key(1)).exists, "the archive")
    archive.begin_round()
    assert source.asked == 1, "what went on in the meantime is enough"


@pytest.mark.parametrize(
    ("error", "tries"),
    [(JobLostError("a is not known"), 1), (ClusterError("no response"), 3), (RuntimeError("a bug"), 3)],
)
def test_a_log_that_its_cluster_has_forgotten_is_asked_for_once_and_any_error_stops_nothing(
    tmp_path: Path, error: Exception, tries: int
) -> None:
    asked: list[str] = []

    def log(address: str, submission_id: str, start: int, size: int) -> bytes:
        asked.append(submission_id)
        raise error

    tick = count()
    archive = archive_of(SimpleNamespace(log=log), lambda: next(tick) * INTERVAL_S)
    run = sample_run(run_folder=str(tmp_path))
    assert archive.archive_last(run, attempt_of(run))
    archive.begin_round()
    archive.begin_round()
    assert len(asked) == tries
