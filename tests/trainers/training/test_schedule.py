"""The learning rate of runs whose length was changed, against transformers' own schedules."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils.deepspeed import DeepSpeedSchedulerWrapper
from transformers import TrainerControl, TrainerState, get_scheduler

from tests.trainers.synthetic import config
from trainers.errors import ConfigError
from trainers.training.arguments import training_arguments
from trainers.training.schedule import ApplyConfig, Schedule, new_scheduler
from trainers.training.tasks import Length

PEAK = 1e-3
WARMUP = 2


def rates(schedule: Schedule, tmp_path: Path, kind: str = "linear", **changes: Any) -> list[float]:
    """The rate of each step of a run."""
    part = {"lr_scheduler_type": kind, "learning_rate": PEAK, "warmup_steps": WARMUP, "max_steps": 10, **changes}
    wanted = config({f"training.{name}": value for name, value in part.items()})
    arguments = training_arguments(wanted, output_dir=tmp_path, accumulation=1, on_gpu=False)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=PEAK)
    return _steps(optimizer, new_scheduler(schedule, arguments, optimizer), schedule.last_step)


def plain(kind: str, steps: int) -> list[float]:
    """The rate of each step as transformers has it."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=PEAK)
    return _steps(optimizer, get_scheduler(kind, optimizer, num_warmup_steps=WARMUP, num_training_steps=steps), steps)


def _steps(optimizer: Any, scheduler: Any, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("kind", ["linear", "cosine", "polynomial"])
def test_one_length_is_transformers_own(kind: str, tmp_path: Path) -> None:
    assert rates(Schedule([Length(10, None)], 5), tmp_path, kind) == plain(kind, 10)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_restart_warms_up_and_decays_once_more_over_the_added_steps(kind: str, tmp_path: Path) -> None:
    schedule = Schedule([Length(10, None), Length(16, None, "restart")], 5)
    assert schedule.last_step == 16
    assert rates(schedule, tmp_path, kind) == [*plain(kind, 10), *plain(kind, 6)]


def test_constant_goes_on_at_the_last_rate(tmp_path: Path) -> None:
    schedule = Schedule([Length(None, 2.0), Length(None, 2.5, "constant"), Length(None, 3.5, "restart")], 4)
    last = 1e-7
    found = rates(schedule, tmp_path, "polynomial", max_steps=None, num_train_epochs=2)
    assert found[:8] == plain("polynomial", 8)
    assert found[8:10] == pytest.approx([last, last])
    assert found[10:] == plain("polynomial", 4)


def test_constant_at_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learning rate has decayed to 0 .* rescale or restart"):
        rates(Schedule([Length(10, None), Length(12, None, "constant")], 5), tmp_path)


def test_a_part_of_an_epoch_counts_as_a_whole_step() -> None:
    assert Schedule([Length(None, 1.5)], 5).last_step == 8


@pytest.mark.parametrize("wrap", [lambda scheduler, optimizer: scheduler, DeepSpeedSchedulerWrapper])
def test_the_first_step_after_a_change_of_length_has_the_new_rate(wrap: Any, tmp_path: Path) -> None:
    arguments = training_arguments(
        config({"training.learning_rate": PEAK, "training.max_steps": 20, "training.warmup_steps": 0}),
        output_dir=tmp_path,
        accumulation=1,
        on_gpu=False,
    )
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=PEAK)
    # Rescaled from 10 steps.
    scheduler = new_scheduler(Schedule([Length(20, None)], 5), arguments, optimizer)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    new_rate = optimizer.param_groups[0]["lr"]
    # What a checkpoint of the shorter run brings.
    optimizer.param_groups[0]["lr"] = PEAK / 2
    ApplyConfig().on_train_begin(
        arguments,
        TrainerState(max_steps=20),
        TrainerControl(),
        lr_scheduler=wrap(scheduler, optimizer),
        optimizer=optimizer,
    )
    assert optimizer.param_groups[0]["lr"] == new_rate == pytest.approx(PEAK * 15 / 20)
