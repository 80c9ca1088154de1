"""A training whose loss or weights are no longer finite ends on all ranks at one step, and saves nothing of it."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainers.prepared import prepared_train
from tests.trainers.synthetic import config, write_corpus
from tests.trainers.training.gradient_process import Job
from tests.trainers.training.rank_processes import run_ranks
from tests.trainers.training.trainer.divergence_process import diverge
from trainers.errors import DivergedError
from trainers.models.families import family_of
from trainers.scoring.scorer import NotFiniteError
from trainers.training.trainer.divergence import Divergence
from trainers.training.trainer.speech_trainer import SpeechTrainer
from trainers.training.trainer.step_times import StepTimes

CPU, INF, NAN = torch.device("cpu"), float("inf"), float("nan")
WEIGHTS = [torch.tensor([1.0, -3e38]), torch.zeros(0)]


@dataclass
class Ranks:
    """What gathers for one rank, where the others have seen what is given."""

    others: list[torch.Tensor] = field(default_factory=list)
    scaler: SimpleNamespace | None = None

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        return torch.cat([own.reshape(-1), *self.others])


def noted(*losses: float, fp16: bool = False) -> Divergence:
    """A rank that has seen these losses, one a step."""
    seen = Divergence(CPU, fp16=fp16)
    for step, loss in enumerate(losses, start=1):
        seen.record(torch.tensor(loss), step, 0.5 / step)
    return seen


@pytest.mark.parametrize("loss", [NAN, INF, -INF])
def test_the_first_loss_that_is_not_finite_is_named_with_its_rate(loss: float) -> None:
    with pytest.raises(DivergedError, match=r"diverged at step 2, at the learning rate 0\.25: the loss is not"):
        noted(1.0, loss, 1.0).raise_if_logged_loss_diverged(NAN, 3, Ranks())


def test_deepspeed_at_its_lowest_loss_scale_has_diverged() -> None:
    scaler = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler").DynamicLossScaler(
        init_scale=1, scale_window=1, min_scale=1, delayed_shift=1, consecutive_hysteresis=False
    )
    message = "diverged at step 3, at the learning rate 0.5: at the lowest loss scale a gradient is not a finite number"
    rank = Divergence(CPU, fp16=True)
    rank.record(torch.tensor(1.0), 3, 0.5)
    with pytest.raises(DivergedError, match=message), rank.watch_deepspeed(3):
        scaler.update_scale(True)
    with pytest.raises(ValueError, match="another"), rank.watch_deepspeed(3):
        raise ValueError("another error")


def test_what_another_rank_has_seen_ends_this_one() -> None:
    rank = noted(1.0, 1.0, 1.0)
    with pytest.raises(DivergedError, match=r"step 2, at the learning rate 0\.25: the loss"):
        rank.raise_if_logged_loss_diverged(NAN, 3, Ranks([torch.tensor([2.0])]))
    with pytest.raises(DivergedError, match=r"step 2, at the learning rate 0\.25: the loss"):
        rank.raise_if_any_rank_diverged(WEIGHTS, 3, Ranks([torch.tensor([2.0, INF])]))


def test_finite_losses_and_weights_end_nothing() -> None:
    rank = noted(1.0, 3e38)
    assert rank.loss_to_log(2.5, Ranks()) == 2.5
    rank.raise_if_logged_loss_diverged(2.5, 2, Ranks())
    rank.raise_if_any_rank_diverged(WEIGHTS, 2, Ranks([torch.tensor([INF, INF])]))


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_weight_that_is_not_finite_is_saved_in_no_checkpoint(value: float) -> None:
    with pytest.raises(DivergedError, match=r"step 2, at the learning rate 0\.25: a weight is not a finite number"):
        noted(1.0, 1.0).raise_if_any_rank_diverged(
            [*WEIGHTS, torch.tensor([[0.0, value]], dtype=torch.bfloat16)], 2, Ranks()
        )


@pytest.mark.parametrize("value", [1.0, NAN])
def test_of_a_weight_that_zero_3_has_divided_the_rank_s_part_decides(value: float) -> None:
    divided: Any = torch.zeros(0)
    divided.ds_tensor = torch.tensor([0.0, value])
    noted(1.0).raise_if_any_rank_diverged([torch.zeros(0)], 1, Ranks())
    with pytest.raises(DivergedError, match="a weight") if math.isnan(value) else nullcontext():
        noted(1.0).raise_if_any_rank_diverged([divided], 1, Ranks())


def test_a_score_that_is_not_finite_ends_it_though_the_weights_are() -> None:
    def score(_: int) -> None:
        raise NotFiniteError("the loss of utterance b is nan")

    trainer: Any = SpeechTrainer.__new__(SpeechTrainer)
    trainer.model = trainer.model_wrapped = torch.nn.Linear(1, 1)
    trainer.accelerator, trainer.state = Ranks(), SimpleNamespace(global_step=2)
    trainer._divergence, trainer._score, trainer.times = noted(1.0, 1.0), score, StepTimes()
    with pytest.raises(DivergedError, match=r"step 2, at the learning rate 0\.25: a loss of the validation set"):
        trainer.evaluate()


class TestFp16:
    def test_a_step_that_overflows_is_skipped_and_leaves_nothing_in_later_losses(self) -> None:
        rank = Divergence(CPU, fp16=True)
        assert float(rank.record(torch.tensor(INF), 1, 0.5)) == 0.0
        assert float(rank.record(torch.tensor(2.0), 2, 0.5)) == 2.0
        assert rank.loss_to_log(1.0, Ranks()) == 1.0
        rank.raise_if_any_rank_diverged(WEIGHTS, 2, Ranks())

    def test_a_line_without_a_finite_loss_is_shown_as_nan(self) -> None:
        rank = noted(1.0, NAN, fp16=True)
        assert rank.loss_to_log(0.5, Ranks()) == 0.5
        rank.record(torch.tensor(NAN), 3, 0.5)
        assert math.isnan(rank.loss_to_log(0.0, Ranks()))

    def test_it_ends_training_once_no_lower_loss_scale_may_help(self) -> None:
        rank = noted(NAN, fp16=True)
        rank.raise_if_logged_loss_diverged(NAN, 1, Ranks(scaler=SimpleNamespace(get_scale=lambda: 2.0)))
        rank.raise_if_logged_loss_diverged(NAN, 1, Ranks())
        with pytest.raises(DivergedError, match=r"step 1, at the learning rate 0\.5: the loss"):
            rank.raise_if_logged_loss_diverged(NAN, 1, Ranks(scaler=SimpleNamespace(get_scale=lambda: 0.5)))


@pytest.mark.integration
def test_all_ranks_end_after_the_same_step_and_write_no_checkpoint(tmp_path: Path) -> None:
    texts = ["a", "one two three four"] * 4
    manifest = write_corpus(tmp_path, texts, durations_s=[1.0 + 0.1 * number for number in range(len(texts))])
    changes = {
        "training.max_steps": 8,
        "training.global_batch_size": 4,
        "training.gradient_accumulation_steps": 2,
        "training.logging_steps": 3,
        "training.eval_steps": 4,
        "training.save_steps": 4,
        "training.report_to": [],
        "scaling.num_workers": 2,
    }
    job = Job(config(changes), prepared_train(manifest, str(tmp_path / "prepared")), tmp_path / "model", tmp_path)
    family_of(job.config.model).write_description(tmp_path / "model", texts, job.config.model)
    run_ranks(diverge, 2, job)
    of_ranks = [(tmp_path / f"ended_{rank}").read_text().splitlines() for rank in (0, 1)]
    assert of_ranks[0] == of_ranks[1]
    of_loss, of_weights = of_ranks[0]
    # The next line of the log is that of step 3.
    assert of_loss.startswith("3: training diverged at step 2, at the learning rate ")
    assert ": the loss is not a finite number" in of_loss
    assert of_weights.startswith("4: training diverged at step 4, at the learning rate ")
    assert ": a weight is not a finite number" in of_weights
    assert not list(tmp_path.glob("out-*/checkpoint-*"))
