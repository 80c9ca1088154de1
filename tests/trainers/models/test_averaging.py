"""Averages of weights."""

import torch

from trainers.models.averaging import weighted_mean


def test_each_weight_is_the_weighted_mean() -> None:
    mean = weighted_mean([{"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([5.0, 10.0])}], [0.25, 0.75])
    assert mean["a"].tolist() == [4.0, 8.0]
    assert mean["a"].dtype == torch.float32


def test_equal_weights_stay_as_they_are() -> None:
    weight = torch.rand(1000)
    assert torch.equal(weighted_mean([{"a": weight}] * 3, [1 / 3] * 3)["a"], weight)


def test_counters_and_dtypes_are_those_of_the_first() -> None:
    first = {"steps": torch.tensor(3), "a": torch.ones(2, dtype=torch.float16)}
    second = {"steps": torch.tensor(5), "a": torch.full((2,), 3.0)}
    mean = weighted_mean([first, second], [0.5, 0.5])
    assert (int(mean["steps"]), mean["a"].dtype, mean["a"].tolist()) == (3, torch.float16, [2.0, 2.0])


def test_models_are_not_changed() -> None:
    first, second = {"a": torch.ones(2), "n": torch.tensor(1)}, {"a": torch.zeros(2), "n": torch.tensor(2)}
    weighted_mean([first, second], [0.5, 0.5])
    assert first["a"].tolist() == [1.0, 1.0]
    assert second["a"].tolist() == [0.0, 0.0]
