"""Where the time of a step went: its parts, what is left out of steps, and what only a GPU knows."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainers.training.trainer.step_times import GradientExchange, StepPart, StepTimes


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def times(clock: Clock) -> StepTimes:
    return StepTimes(clock)


def test_each_second_counts_once(times: StepTimes, clock: Clock) -> None:
    with times.spent_on(StepPart.DATA):
        clock.now_s += 3.0
    with times.spent_on(StepPart.COMMUNICATION):
        clock.now_s += 0.25
    clock.now_s += 4.0
    assert times.take() == (7.25, 3.0, 0.25)
    assert times.take() == (0.0, 0.0, 0.0), "each second is taken once"


def test_scores_and_checkpoints_are_no_part_of_steps(times: StepTimes, clock: Clock) -> None:
    clock.now_s += 1.0
    with times.spent_on(StepPart.SCORING):
        clock.now_s += 10.0
    times.begin(StepPart.CHECKPOINT)
    clock.now_s += 20.0
    assert times.end() == 20.0
    clock.now_s += 1.0
    assert times.take().steps == 2.0


def test_what_a_gpu_waited_for_a_batch_is_read_off_events_that_have_passed(
    times: StepTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[Any] = []

    class Event:
        """The GPU has come to all but the last."""

        def __init__(self, enable_timing: bool):
            assert enable_timing

        def record(self) -> None:
            recorded.append(self)

        def query(self) -> bool:
            return self is not recorded[-1]

        def elapsed_time(self, later: "Event") -> float:
            assert recorded.index(later) == recorded.index(self) + 1
            return 500.0

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    for _ in range(3):
        with times.reading_ahead():
            pass
    assert times.take().data == 1.0
    with times.reading_ahead():
        pass
    assert times.take().data == 0.5, "the one before has passed by now, the newest has not"


@pytest.mark.integration
def test_the_exchange_of_gradients_is_known_of_one_rank_and_of_ddp_alone() -> None:
    trainer: Any = SimpleNamespace(args=SimpleNamespace(world_size=1), model_wrapped=None)
    exchange = GradientExchange(trainer)
    assert exchange.seconds == 0.0
    trainer.args = SimpleNamespace(world_size=2)
    exchange.sample(5)
    assert exchange.seconds is None
