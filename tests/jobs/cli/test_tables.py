"""Tables of commands: within the terminal's width, with states in color."""

from typing import Any

import pytest

from jobs.cli.output import attempt_line, runs_table, table_lines
from tests.jobs.ledger.builders import make_attempt
from tests.jobs.sample import sample_run

HEAD = ("RUN", "STATE", "REASON")
ROWS = [("FAILED-sr", "FAILED", "no room"), ("語彙", "QUEUED", "waits\nfor \x1b[31m2 GPU")]


def test_columns_are_as_wide_as_what_a_terminal_shows_of_them() -> None:
    assert table_lines(HEAD, ROWS) == [
        "RUN        STATE   REASON",
        "FAILED-sr  FAILED  no room",
        "語彙       QUEUED  waits for 2 GPU",
    ]


def test_lines_are_cut_at_the_terminal_s_width() -> None:
    assert table_lines(HEAD, ROWS, width=22) == [
        "RUN        STATE   RE…",
        "FAILED-sr  FAILED  no…",
        "語彙       QUEUED  wa…",
    ]


def test_in_a_pipe_no_reason_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    reason = f"{'no room ' * 30}at all"
    runs_table([sample_run(reason=reason)])
    assert capsys.readouterr().out.endswith(f"  {reason}\n")
    assert attempt_line(make_attempt("sr", message=f"{reason}\nmore"), sample_run()).endswith(f" · {reason} more")


@pytest.mark.parametrize(
    ("config", "checkpoint", "start"),
    [
        ({"model": {"init": "scratch"}}, None, "from scratch"),
        ({"model": {"init": "pretrained", "name_or_path": "openai/whisper-tiny"}}, None, "from pretrained weights"),
        ({"model": {"init": "pretrained"}}, "checkpoint-3", "from checkpoint-3"),
        ({"run": {"resume": "from:/runs/a/checkpoints/b"}}, None, "from the checkpoint /runs/a/checkpoints/b"),
        ({"script": {}}, None, "from scratch"),
    ],
)
def test_an_attempt_says_what_it_starts_from(config: dict[str, Any], checkpoint: str | None, start: str) -> None:
    line = attempt_line(make_attempt("sr", resume_from=checkpoint), sample_run(config=config))
    assert line.endswith(f", {start}")


def test_a_state_is_in_its_color_and_no_name_that_is_like_one() -> None:
    _, failed, queued = table_lines(HEAD, ROWS, with_color=True)
    assert failed == "FAILED-sr  \x1b[31mFAILED\x1b[0m  no room"
    assert "\x1b" not in queued
    assert "\x1b" not in table_lines(HEAD, ROWS, width=14, with_color=True)[1], "a part of a state is none"
    assert table_lines(("QUEUE", "HOURS"), [("FAILED", "1")], with_color=True)[1] == "FAILED  1"
