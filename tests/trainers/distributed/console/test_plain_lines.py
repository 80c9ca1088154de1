"""Events as lines of a log."""

import sys

import pytest

from trainers.distributed.console import ProgressCounter
from trainers.distributed.console.events import (
    Counted,
    Event,
    Finished,
    Logged,
    Stage,
    StageEnded,
    Stepped,
    Validated,
    View,
)
from trainers.distributed.console.plain_lines import line_of, spent_line, still_line
from trainers.distributed.console.screen import LogOutput

RAY = Stage("Ray", "starting on this machine")
SHARDS = Counted("prepare train", 150, 600, "clips", took_s=3.0, note="2 quarantined")


def view_after(*events: Event, every_s: float = 1.0) -> View:
    view = View(began_s=0.0)
    for number, event in enumerate(events, start=1):
        view = view.after(event, number * every_s)
    return view


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ("train: 2 workers", "train: 2 workers"),
        (RAY, "Ray: starting on this machine · after 4.2 s"),
        (Stage("train", "training", is_told=False), None),
        (SHARDS, "prepare train: █████░░░░░░░░░░░░░░░ 150/600 clips · 50 clips/s · ETA 9 s · 2 quarantined"),
        (Counted("prepare train", 150, 600, "clips", took_s=3.0, is_logged=False), None),
        (Counted("score", 1, 1, "clips", took_s=30.0, has_ended=True), "score: 1 clips · 0.033 clips/s · in 30 s"),
        (Counted("score test", 6, 6, "clips", took_s=3.0, has_ended=True), "score test: 6 clips · 2 clips/s · in 3 s"),
        (Stepped(3, 10), None),
        (
            Logged(10, 20, 0.5, 1.25, 8.0, 24.0, 90.0, {"matching": 0.5}),
            "step 10/20 · epoch 0.5 · loss 1.2500 · matching 0.5000 · 8.0 clips/s · 24.0 audio s/s · ETA 1 min 30 s",
        ),
        (Validated(10, 20, {"wer": 12.5}, "step 10/20 · validation WER 12.50%"), "step 10/20 · validation WER 12.50%"),
        (Finished("WER 4% · /runs/sr", "/runs/sr"), "WER 4% · /runs/sr"),
    ],
)
def test_each_event_has_its_line(event: Event, line: str | None) -> None:
    assert line_of(event, 4.2) == line


def test_outside_of_a_command_stages_are_not_told() -> None:
    assert line_of(RAY) is None


@pytest.mark.parametrize(
    ("stills", "quiet_s", "is_due"),
    [(0, 9.9, False), (0, 10.0, True), (1, 19.9, False), (1, 20.0, True), (9, 59.9, False), (9, 60.0, True)],
)
def test_a_stage_that_goes_on_without_a_line_is_told_after_ever_longer_times(
    stills: int, quiet_s: float, is_due: bool
) -> None:
    line = still_line(view_after(RAY), 121.0, quiet_s=quiet_s, stills=stills)
    assert line == ("Ray: still starting on this machine, 2 min 00 s" if is_due else None)


def test_how_far_a_stage_is_stands_in_its_line() -> None:
    preparing = view_after(Stage("prepare train", "decoding 600 clips"), SHARDS)
    training = view_after(Stage("train", "training"), Stepped(3, 10))
    shown = [still_line(view, 21.0, quiet_s=10.0, stills=0) for view in (preparing, training)]
    assert shown == [
        "prepare train: still decoding 600 clips, 150 of 600 clips, 20 s",
        "train: still training, step 3/10, 20 s",
    ]


def test_a_stage_that_others_tell_goes_on_only_once_it_has_lasted(capsys: pytest.CaptureFixture[str]) -> None:
    output, stage = LogOutput(sys.stdout), Stage("sr", "TRAINING", is_told=False)
    view = View(began_s=0.0)
    output.show(stage, view, 30.0)
    view = view.after(stage, 30.0)
    output.tick(view, 30.5)
    output.tick(view, 40.0)
    assert capsys.readouterr().out == "sr: still TRAINING, 10 s\n"


def test_where_others_show_what_goes_on_nothing_is_told() -> None:
    assert still_line(view_after(RAY, StageEnded()), 1e3, quiet_s=999.0, stills=0) is None
    assert still_line(View(began_s=0.0), 1e3, quiet_s=999.0, stills=0) is None


def test_at_the_end_each_stage_has_its_time_and_those_that_come_again_their_sum() -> None:
    train, validation = Stage("train", "training"), Stage("validation", "scoring")
    view = view_after(
        RAY, Stage("prepare train", "decoding"), Stage("prepare test", "decoding"), train, validation, train
    )
    assert spent_line(view, 61.0) == (
        "time: Ray 1.0 s · prepare 2.0 s · train 56.0 s · validation 1.0 s, together 1 min 01 s"
    )


def test_a_count_is_shown_seldom_and_logged_more_seldom() -> None:
    shown: list[Counted] = []
    now_s = [0.0]
    counter = ProgressCounter("score", total=100, unit="clips", show=shown.append, every_s=2.0, clock=lambda: now_s[0])
    for _ in range(100):
        now_s[0] += 0.125
        counter.advance(1)
    counter.done()
    assert [event.done for event in shown] == [*range(4, 100, 4), 100]
    assert [event.done for event in shown if event.is_logged] == [16, 32, 48, 64, 80, 96, 100]
