"""Interpolated weights are exact at both ends, and the share with the best score is chosen."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.trainers.synthetic import config
from trainers.scoring.report.model_card import BEST_CHECKPOINT
from trainers.training.base.interpolation import Candidate, best_candidate, set_weights


class Holder:
    """Stands for a recognizer, of which only the model is used."""

    def __init__(self) -> None:
        self.model = torch.nn.BatchNorm1d(1000)


def stored(path: Path, **weights: torch.Tensor) -> Path:
    save_file(weights, path)
    return path


@pytest.mark.parametrize(("share", "end"), [(0.0, 0), (1.0, 1)])
def test_the_ends_are_the_weights_themselves(tmp_path: Path, share: float, end: int) -> None:
    holder: Any = Holder()
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(1000, generator=generator) * scale for scale in (1e-3, 1e3)]
    base = stored(tmp_path / "base", weight=drawn[0], num_batches_tracked=torch.tensor(3))
    tuned = stored(tmp_path / "tuned", weight=drawn[1], num_batches_tracked=torch.tensor(7))
    set_weights(holder, base, tuned, share)
    assert torch.equal(holder.model.weight, drawn[end])
    assert holder.model.num_batches_tracked == 7


def test_a_share_between_is_a_weighted_mean(tmp_path: Path) -> None:
    holder: Any = Holder()
    base = stored(tmp_path / "base", weight=torch.zeros(1000))
    set_weights(holder, base, stored(tmp_path / "tuned", weight=torch.full((1000,), 2.0)), 0.25)
    assert torch.equal(holder.model.weight, torch.full((1000,), 0.5))


RANKED = {"checkpoint.checkpoint_score_attribute": "eval_wer"}


@pytest.mark.parametrize(
    ("wers", "refused", "share"),
    [
        ({0.3: 9.0, 0.7: 8.0, 1.0: 8.5}, set(), 0.7),
        # Of equal ones the largest.
        ({0.3: 8.0, 0.7: 8.0, 1.0: 8.5}, set(), 0.7),
        ({0.3: 9.0, 0.7: 8.0, 1.0: 7.0}, {1.0, 0.7}, 0.3),
        ({0.3: 9.0}, {0.3}, None),
    ],
)
def test_the_best_share_that_passes_the_gate_is_chosen(
    wers: dict[float, float], refused: set[float], share: float | None
) -> None:
    metrics = {
        Candidate(BEST_CHECKPOINT, each): {"eval_wer": wer} | ({"eval_refused": 1.0} if each in refused else {})
        for each, wer in wers.items()
    }
    expected = Candidate(BEST_CHECKPOINT, share) if share is not None else None
    assert best_candidate(config(RANKED), metrics) == expected


def test_interpolations_are_ranked_at_the_full_context() -> None:
    nearer, tuned = (Candidate(BEST_CHECKPOINT, share) for share in (0.5, 1.0))
    metrics = {
        nearer: {"eval_wer": 2580.0, "eval_full_context_wer": 9.0},
        tuned: {"eval_wer": 5.0, "eval_full_context_wer": 12.0},
    }
    assert best_candidate(config(RANKED | {"checkpoint.interpolate": [0.5]}), metrics) == nearer
    # An average of checkpoints of a short context is ranked as they are.
    assert best_candidate(config(RANKED | {"checkpoint.average": 2}), metrics) == tuned
