"""Averages of weights, and distances between them."""

import pytest
import torch

from trainers.models.weights import layer_distances, layer_of, weighted_mean


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


def test_weights_of_a_layer_count_together() -> None:
    base = {"encoder.layers.0.fc1.weight": torch.tensor([3.0, 0.0]), "encoder.layers.0.fc2.bias": torch.tensor([4.0])}
    tuned = {"encoder.layers.0.fc1.weight": torch.tensor([3.0, 3.0]), "encoder.layers.0.fc2.bias": torch.tensor([8.0])}
    # |(0, 3, 4)| / |(3, 0, 4)|
    assert layer_distances(base, tuned) == {"encoder.layers.0": pytest.approx(1.0)}


def test_layers_are_in_the_order_of_the_model() -> None:
    weights = {f"layers.{number}.weight": torch.ones(2) for number in (10, 2, 0)} | {"head.bias": torch.ones(1)}
    assert [*layer_distances(weights, weights).items()] == [
        ("layers.10", 0.0),
        ("layers.2", 0.0),
        ("layers.0", 0.0),
        ("head", 0.0),
    ]


def test_what_cannot_be_compared_is_left_out() -> None:
    base = {"head.weight": torch.ones(2, 3), "zero.bias": torch.zeros(2), "count.steps": torch.tensor([1])}
    tuned = {
        "head.weight": torch.ones(4, 3),
        "zero.bias": torch.ones(2),
        "count.steps": torch.tensor([5]),
        "new.weight": torch.ones(1),
    }
    assert layer_distances(base, tuned) == {}


def test_half_precision_does_not_overflow() -> None:
    base = {"a.weight": torch.full((100,), 60000.0, dtype=torch.float16)}
    tuned = {"a.weight": torch.full((100,), 30000.0, dtype=torch.float16)}
    assert layer_distances(base, tuned) == {"a": pytest.approx(0.5)}


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.encoder.layers.3.self_attn.q_proj.weight", "model.encoder.layers.3"),
        ("model.decoder.embed_tokens.weight", "model.decoder.embed_tokens"),
        ("weight", "weight"),
    ],
)
def test_a_layer_is_a_numbered_one_or_a_module(name: str, layer: str) -> None:
    assert layer_of(name) == layer
