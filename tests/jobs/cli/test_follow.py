"""Following a run to its end, and the exit code that a command gives back for it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from jobs.cli import app as app_module
from jobs.cli import connect as connections
from jobs.cli import submit
from jobs.cli.connect import CommandSession
from jobs.cli.follow import LOG_TIMEOUT_S, Follower, exit_code_of, print_text
from jobs.cli.output import run_details, runs_table
from jobs.errors import ClusterGoneError, ServiceError
from jobs.model import LogLine, LogPage, Progress, Run, RunState
from tests.jobs.ledger.builders import make_attempt
from tests.jobs.sample import sample_run
from trainers.distributed.console import opened_screen
from trainers.errors import StorageError


class FakeOperations:
    """Operations with one run; each read moves it one step on."""

    def __init__(self, runs: Sequence[Run | Exception], logs: Mapping[int, Sequence[LogPage | Exception]]):
        self.runs = list(runs)
        self.logs_of = {attempt: list(pages) for attempt, pages in logs.items()}

    def run(self, run_id: str) -> Run:
        found = self.runs[0]
        if len(self.runs) > 1:
            self.runs.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def logs(self, run_id: str, *, attempt: int | None, source: str | None, cursor: str | None) -> LogPage:
        assert attempt is not None
        pages = self.logs_of[attempt]
        found = pages[0]
        if len(pages) > 1:
            pages.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\tplain ž\nnext", "\tplain ž\nnext"),
        ("\x1b[31mred\x1b[0m \x1b[2J\x1b[1;1Hgone \x9b5m", "red gone "),
        ("\x1b]0;title\x07a\x1b]52;c;Y3VybA==\x1b\\b", "ab"),
        ("\x1bcreset \x07 \x08", "\\x1bcreset \\x07 \\x08"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        (" 10%\r 20%\r", " 20%"),
        ("a\r\nb", "a\nb"),
    ],
)
def test_a_terminal_obeys_nothing_that_a_job_has_printed(
    capsys: pytest.CaptureFixture[str], text: str, shown: str
) -> None:
    print_text(LogLine(source="driver", text=text))
    assert capsys.readouterr().out == f"{shown}\n"


def test_a_reason_in_a_list_and_in_an_error_changes_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sample_run(reason="\x1b]0;title\x07failed\x1b[8m", tags=["\x1b[2J"])
    runs_table([run])
    run_details(run, [])

    def fail(*_: object, **__: object) -> None:
        raise ServiceError(run.reason)

    monkeypatch.setattr(app_module, "app", fail)
    assert app_module.main([]) == ServiceError.exit_code
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert "failed" in printed.out and "error: failed" in printed.err


def test_a_run_s_details_have_the_course_of_its_error_rate(capsys: pytest.CaptureFixture[str]) -> None:
    run_details(sample_run(progress=Progress(phase="TRAINING", wers=(90.0, 90.0, 30.0, 50.0))), [])
    assert "WER        90.00% to 50.00% ██▁▃\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        ({"test_wer": 7.5, "test_full_context_wer": 9.0, "best_wer": 5.0}, "7.50% short context, 9.00% full context"),
        ({"best_wer": 5.0, "best_full_context_wer": 6.25, "wer": 8.0}, "5.00% short context, 6.25% full context"),
        ({"wer": 8.0, "full_context_wer": 8.5}, "8.00% short context, 8.50% full context"),
        ({"test_wer": 7.5}, "7.50%"),
    ],
)
def test_both_scores_of_a_model_with_a_short_context_are_named(
    capsys: pytest.CaptureFixture[str], known: dict[str, float], shown: str
) -> None:
    run = sample_run(progress=Progress(phase="ENDED", **known))
    runs_table([run])
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert line.rstrip().endswith(f"  {shown}")
    run_details(run, [])
    assert f": WER {shown}" in capsys.readouterr().out


def test_a_run_s_details_have_the_restarts_of_its_workers(capsys: pytest.CaptureFixture[str]) -> None:
    run_details(sample_run(progress=Progress(phase="TRAINING", restarts=2, restart_reason="rank 1 died")), [])
    assert "  workers    2 restarts within the attempt, the last after: rank 1 died\n" in capsys.readouterr().out


def page(attempt: int, *texts: str, ended: bool = False) -> LogPage:
    lines = [LogLine(source="driver", text=text) for text in texts]
    return LogPage(attempt=attempt, lines=lines, cursor="c", ended=ended)


def follow(operations: FakeOperations, clock: Callable[[], float] = lambda: 0.0) -> list[str]:
    operated, nothing = cast(Any, operations), lambda: None
    session = CommandSession(operated, Path(), nothing, nothing, connections._poll_service, standalone=False)
    shown: list[str] = []
    Follower(session, "sr", source=None, show=lambda line: shown.append(line.text), clock=clock).run_to_end(states=True)
    return shown


class WithoutAttempts(FakeOperations):
    """A run that no cluster takes."""

    def attempts(self, run_id: str) -> list[Any]:
        return []


class WithAnAttempt(FakeOperations):
    """A run whose first attempt Ray has accepted."""

    def attempts(self, run_id: str) -> list[Any]:
        return [make_attempt("sr", submitted_s=1.0)]


@pytest.fixture(autouse=True)
def no_poll_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "POLL_S", 0.0)


def test_a_service_that_restarts_is_waited_for_without_gap_or_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    live, over = sample_run(state=RunState.TRAINING, attempt=1), sample_run(state=RunState.SUCCEEDED, attempt=2)
    gone = ServiceError("the service does not respond")
    logs: dict[int, list[LogPage | Exception]] = {
        1: [page(1, "one"), gone, gone, page(1), page(1, "two", ended=True)],
        2: [page(2, "three"), page(2, ended=True)],
    }
    assert follow(FakeOperations([live, live, gone, live, live, over], logs)) == ["one", "two", "three"]
    assert "waiting for the service" in capsys.readouterr().err


def test_a_service_that_never_answered_is_not_waited_for() -> None:
    with pytest.raises(ServiceError):
        follow(FakeOperations([ServiceError("no server")], {}))


def test_logs_that_cannot_be_read_are_waited_for_and_given_up_after_the_run_s_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    live, over = sample_run(state=RunState.TRAINING, attempt=1), sample_run(state=RunState.FAILED, attempt=1)
    now_s = iter(range(0, 100_000, 30))
    broken = StorageError("s3://bucket: no response")
    assert follow(
        FakeOperations([live] * 20 + [over], {1: [page(1, "one"), page(1), broken]}), lambda: next(now_s)
    ) == ["one"]
    printed = capsys.readouterr().err
    assert printed.count("logs: s3://bucket: no response; retrying") == 1
    assert "try again later: rayscribe logs sr" in printed
    assert next(now_s) > LOG_TIMEOUT_S


def test_a_log_without_output_prints_a_notice(capsys: pytest.CaptureFixture[str]) -> None:
    operations = FakeOperations([sample_run(state=RunState.FAILED, attempt=1)], {1: [page(1, ended=True)]})
    operated, nothing = cast(Any, operations), lambda: None
    session = CommandSession(operated, Path(), nothing, nothing, connections._poll_service, standalone=False)
    Follower(session, "sr", source="rank-9", attempt=1).show_new()
    assert capsys.readouterr().err == "no output of rank-9 in attempt 1 of sr\n"


@pytest.mark.parametrize(
    ("state", "code", "given"),
    [
        (RunState.SUCCEEDED, 0, 0),
        (RunState.FAILED, 7, 7),
        (RunState.FAILED, -9, 137),
        (RunState.FAILED, None, 1),
        (RunState.STOPPED, None, 143),
        (RunState.STOPPED, 143, 143),
    ],
)
def test_the_entrypoint_s_own_exit_code_is_given_back(state: RunState, code: int | None, given: int) -> None:
    assert exit_code_of(sample_run(state=state, exit_code=code)) == given


def test_a_submission_to_a_cluster_that_does_not_respond_says_once_how_to_leave_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(submit, "HINT_S", -1.0)
    queued, stopped = (sample_run(state=state) for state in (RunState.QUEUED, RunState.STOPPED))
    nothing, operated = lambda: None, cast(Any, WithoutAttempts([queued] * 3 + [stopped], {}))
    session = CommandSession(operated, Path(), nothing, nothing, connections._poll_service, standalone=True)
    assert submit._next_attempt(session, queued).state == RunState.STOPPED
    assert capsys.readouterr().err.count("waits until the run starts; Ctrl-C leaves it queued") == 1


def test_a_submission_without_a_service_says_what_needs_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    accepted = sample_run(state=RunState.TRAINING, attempt=1)
    nothing, operated = lambda: None, cast(Any, WithAnAttempt([accepted], {}))
    session = CommandSession(operated, Path(), nothing, nothing, connections._poll_service, standalone=True)
    submit._report(session, sample_run(state=RunState.QUEUED), submit.Submission())
    assert capsys.readouterr().out.splitlines()[-1] == (
        "the cluster runs it by itself; without a service, it is retried after a failure only while a command runs: "
        "rayscribe wait sr"
    )


def test_a_resumed_run_whose_cluster_is_gone_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(address: str) -> None:
        raise ClusterGoneError(f"{address} was taken down")

    monkeypatch.setattr(submit, "connect", gone)
    resumed = sample_run(state=RunState.QUEUED, attempt=1, reason="resumed by ana")
    told = resumed.model_copy(update={"reason": "it was taken down; start it again"})
    nothing, operated = lambda: None, cast(Any, WithAnAttempt([resumed, resumed, told], {}))
    session = CommandSession(operated, Path(), nothing, nothing, connections._poll_service, standalone=True)
    submit._report(session, resumed, submit.Submission())
    printed = capsys.readouterr()
    assert "taken down" not in printed.err, "a terminal shows both"
    assert printed.out.splitlines() == [
        f"sr: submitted to queue {resumed.queue} · {resumed.run_folder}",
        "sr: QUEUED · it was taken down; start it again",
        "without a service, it is started and retried only while a command runs: rayscribe wait sr",
    ]


def test_a_followed_run_ends_with_what_may_be_done_next(capsys: pytest.CaptureFixture[str]) -> None:
    live, over = sample_run(state=RunState.QUEUED), sample_run(state=RunState.FAILED, attempt=1, exit_code=7)
    operated, nothing = (
        cast(Any, FakeOperations([live, live, over], {1: [page(1, "one"), page(1, ended=True)]})),
        lambda: None,
    )
    session = CommandSession(operated, Path(), nothing, nothing, connections._poll_service, standalone=False)
    with opened_screen(to_stderr=True), pytest.raises(typer.Exit) as ended:
        submit._report(session, live, submit.Submission(follow=True))
    printed = capsys.readouterr()
    assert (ended.value.exit_code, printed.out.splitlines()[1:]) == (7, ["one"])
    assert printed.err.splitlines()[-1] == "continue it: rayscribe resume sr --follow"
