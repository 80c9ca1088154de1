"""What a model draws in training is seeded once for each optimizer step, whatever forward passes it has."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trainers.training.callbacks import Reseed


def drawn(seed: int, step: int, rank: int, passes: int = 3) -> list[tuple[float, float]]:
    """What the forward passes of a step draw from numpy's and torch's global generators."""
    Reseed(seed, rank).on_step_begin(None, SimpleNamespace(global_step=step), None)
    return [(float(np.random.rand()), float(torch.rand(()))) for _ in range(passes)]


def test_a_step_draws_again_what_it_drew_and_its_forward_passes_differ() -> None:
    first = drawn(1, 5, 0)
    np.random.rand(7)
    assert drawn(1, 5, 0) == first
    assert len(set(first)) == len(first)


@pytest.mark.parametrize("other", [(2, 5, 0), (1, 6, 0), (1, 5, 1)])
def test_seed_step_and_rank_each_give_other_draws(other: tuple[int, int, int]) -> None:
    assert not set(drawn(*other)) & set(drawn(1, 5, 0))
