"""Events on a terminal."""

import io
import math

import pytest
from rich.console import Console
from rich.text import Text

from tests.trainers.distributed.console.test_plain_lines import RAY, SHARDS, view_after
from trainers.distributed.console.events import Event, Finished, Logged, Stage, Stepped, TrainingBegan, Validated, View
from trainers.distributed.console.live_view import BAR_WIDTH, lasting_lines, live_lines
from trainers.distributed.console.plain_lines import sparkline

TRAIN = Stage("train", "training", is_told=False)
LOSSES = [Logged(step, 20, step / 10, 3.0 / step, 8.0, 24.0, 90.0) for step in (5, 10)]
TRAINED: tuple[Event, ...] = (
    TrainingBegan("train: …", 2, 0, 20),
    TRAIN,
    *LOSSES,
    Validated(10, 20, {"wer": 50.0, "cer": 20.0}, ""),
    Validated(10, 20, {"wer": 40.0, "cer": 10.0}, ""),
    Stepped(11, 20, 80.0),
)


def plain(lines: list[Text]) -> list[str]:
    return [line.plain for line in lines]


def test_the_stage_moves_and_has_its_time() -> None:
    view = view_after(RAY)
    first, later = (plain(live_lines(view, now_s, 100)) for now_s in (6.0, 6.125))
    assert first == ["⠼ Ray: starting on this machine · 5 s".replace("⠼", first[0][0])]
    assert first[0][0] != later[0][0] and first[0][1:] == later[0][1:]


def test_what_is_counted_has_a_bar_and_the_time_that_is_left() -> None:
    (line,) = plain(live_lines(view_after(Stage("prepare train", "decoding 600 clips"), SHARDS), 4.0, 120))
    assert line[1:] == f" prepare train: decoding 600 clips  {'━' * 20}  150/600 clips · ETA 9 s · 3 s"


def test_training_shows_steps_loss_error_rate_speed_and_workers() -> None:
    stage, numbers = plain(live_lines(view_after(*TRAINED), 10.0, 120))
    assert "11/20 steps · ETA 1 min 20 s" in stage
    assert numbers == "  loss 0.3000 █▁ · WER 40.0% █▁ · 8.0 clips/s · 2 workers"

    both = Validated(15, 20, {"wer": 30.0, "cer": 5.0, "full_context_wer": 35.0}, "")
    _, numbers = plain(live_lines(view_after(*TRAINED, both), 10.0, 120))
    assert "WER 30.0% short context, 35.0% full context █" in numbers


@pytest.mark.parametrize("width", [20, 40, BAR_WIDTH - 1, BAR_WIDTH, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert all(line.cell_len <= width for line in live_lines(view_after(*TRAINED), 10.0, width))


def test_lines_that_the_view_shows_leave_none_and_a_stage_leaves_one_when_it_is_over() -> None:
    before = view_after(RAY)
    assert [lasting_lines(event, before, 9.0) for event in (SHARDS, LOSSES[0], Stepped(1, 2))] == [[], [], []]
    assert plain(lasting_lines(TRAIN, before, 9.0)) == ["✓ Ray: starting on this machine · 8.0 s"]
    assert lasting_lines(RAY, view_after(TRAIN), 9.0) == [], "it is not told"
    ended = lasting_lines(Finished("WER 4%", "/runs"), before, 9.0)
    assert plain(ended) == ["✓ Ray: starting on this machine · 8.0 s", "time: Ray 8.0 s, together 9 s", "WER 4%"]


def test_colors_have_a_meaning_and_none_where_the_user_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(event: Event) -> str:
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, color_system="standard")
        for line in lasting_lines(event, View(0.0), 1.0):
            console.print(line)
        return file.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert shown("warning: odd") == "\x1b[33mwarning: odd\x1b[0m\n"
    assert shown("plain") == "plain\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown("warning: odd") == "warning: odd\n"


def test_a_sparkline_spans_the_last_values_and_leaves_out_what_is_not_finite() -> None:
    assert sparkline([9.0, 1.0, 8.0], cells=2) == "▁█"
    assert sparkline([1.0, math.nan, 2.0, math.inf, 1.5]) == "▁ █ ▅"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([1.0]) == sparkline([]) == ""
