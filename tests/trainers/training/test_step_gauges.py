"""What a rank shows of its training: numbers of the steps since the last line of the log."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trainers.distributed import gauges
from trainers.distributed.gauges import Gauge
from trainers.distributed.session import LocalSession
from trainers.training.trainer.step_times import StepGauges, StepPart, StepTimes

ARGUMENTS = SimpleNamespace(logging_steps=2)
DURATIONS_S = np.array([1.0, 2.0, 3.0, 4.0])
Shown = dict[tuple[Gauge, str], float]


@dataclass(frozen=True)
class Watched(LocalSession):
    """A rank that is watched."""

    shown: Shown = field(default_factory=dict)

    def set_gauge(self, gauge: Gauge, value: float, **labels: str) -> None:
        assert set(labels) == set(gauge.labels)
        self.shown[gauge, "".join(labels.values())] = value


class Plan:
    """Two forward passes a step, each padded to 5 s; the second is a filler."""

    def micro_batches(self, step: int, rank: int) -> Any:
        yield np.array([step, step + 1]), 5.0
        yield np.array([], dtype=int), 5.0


class Trainer:
    """A Trainer whose clock is set by hand, and its exchange of gradients."""

    def __init__(self, exchange_s: float | None = 0.5):
        self.now_s, self.seconds = 0.0, exchange_s
        self.times = StepTimes(lambda: self.now_s)
        self.sampled = 0

    def sample(self, every: int) -> None:
        self.sampled = every


def train(trainer: Trainer, session: Watched) -> Any:
    """Two steps of 4 s each, of which a second is spent on data and half of one on agreeing; then a line of the log."""
    shown: Any = StepGauges(session, trainer.times, trainer, Plan(), DURATIONS_S)  # type: ignore[arg-type]
    state = SimpleNamespace(global_step=0, max_steps=8)
    trainer.now_s = 50.0
    shown.on_train_begin(ARGUMENTS, state, None)
    with trainer.times.spent_on(StepPart.DATA):
        trainer.now_s += 2.0
    with trainer.times.spent_on(StepPart.COMMUNICATION):
        trainer.now_s += 1.0
    trainer.now_s += 5.0
    state.global_step = 2
    shown.on_step_end(ARGUMENTS, state, None)
    shown.on_log(ARGUMENTS, state, None, logs={"loss": 1.5})
    return shown, state


def test_a_line_of_the_log_shows_speed_padding_and_where_a_step_s_time_went() -> None:
    trainer, session = Trainer(), Watched(0, 2, 0)
    train(trainer, session)
    assert trainer.sampled == 2
    shown = session.shown
    assert shown.pop((gauges.LAST_PROGRESS, "")) > 0
    assert shown == {
        (gauges.LOSS, ""): 1.5,
        (gauges.PROGRESS, ""): 0.25,
        (gauges.CLIPS, ""): 4 / 8,
        (gauges.AUDIO, ""): 8 / 8,
        # 8 s of audio, in two passes of two clips and two fillers, of 5 s each.
        (gauges.PADDING, ""): pytest.approx(1 - 8 / 30),
        (gauges.STEP_TIME, "data"): 1.0,
        (gauges.STEP_TIME, "communication"): 1.0,
        (gauges.STEP_TIME, "compute"): 2.0,
    }


def test_other_ranks_show_what_is_their_own() -> None:
    session = Watched(1, 2, 0)
    train(Trainer(), session)
    assert {gauge for gauge, _ in session.shown} == {
        gauges.LAST_PROGRESS,
        gauges.CLIPS,
        gauges.AUDIO,
        gauges.PADDING,
        gauges.STEP_TIME,
    }


def test_where_the_exchange_is_not_timed_it_is_not_shown_and_counts_as_computing() -> None:
    session = Watched(0, 2, 0)
    train(Trainer(exchange_s=None), session)
    assert (gauges.STEP_TIME, "communication") not in session.shown
    assert session.shown[gauges.STEP_TIME, "compute"] == 3.0


def test_a_checkpoint_is_spread_over_the_steps_since_the_one_before() -> None:
    trainer, session = Trainer(), Watched(0, 2, 0)
    shown, state = train(trainer, session)
    trainer.times.begin(StepPart.CHECKPOINT)
    trainer.now_s += 3.0
    shown.on_save(ARGUMENTS, state, None)
    assert session.shown[gauges.STEP_TIME, "checkpoint"] == 1.5
    trainer.now_s += 1.0
    session.shown.clear()
    shown.on_log(ARGUMENTS, state, None, logs={"eval_wer": 1.0})
    shown.on_log(ARGUMENTS, state, None, logs={"loss": 1.0})
    assert session.shown == {}, "a line with a score, or without a new step, has nothing to show"


def test_the_end_prints_the_share_of_step_time_that_was_spent_on_data(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    shown, state = train(trainer, Watched(0, 1, 0))
    with trainer.times.spent_on(StepPart.SCORING):
        trainer.now_s += 100.0
    with trainer.times.spent_on(StepPart.DATA):
        trainer.now_s += 0.5
    trainer.now_s += 1.5
    shown.on_train_end(ARGUMENTS, state, None)
    # Of 8 s and 2 s more.
    assert capsys.readouterr().out == "train: 25.00% of step time was spent waiting for data\n"
