"""Averages weights of models that have the same architecture, and measures how far a training has moved them. Pure.

Wortsman et al. 2022, "Model soups": the average of models that were trained from the same weights often scores better
than each of them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch

Weights = Mapping[str, torch.Tensor]


def weighted_mean(models: Iterable[Weights], shares: Sequence[float]) -> dict[str, torch.Tensor]:
    """Returns the sum of the weights of models, each times its share; the shares sum to 1.

    Computed in float64, one model at a time, and rounded to the dtype of the first model's weight. Integers, such as
    counters of batch norms, are the first model's. All models have weights of the same names and shapes.
    """
    total: dict[str, torch.Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for weights, share in zip(models, shares, strict=True):
        if not total:
            dtypes = {name: weight.dtype for name, weight in weights.items()}
            total = {
                name: weight.double() * share if weight.is_floating_point() else weight.clone()
                for name, weight in weights.items()
            }
            continue
        for name, weight in weights.items():
            if weight.is_floating_point():
                total[name] += weight.double() * share
    return {name: weight.to(dtypes[name]) for name, weight in total.items()}


def layer_distances(base: Weights, tuned: Weights) -> dict[str, float]:
    """Returns the relative distance |tuned - base| / |base| of the weights of each layer, by the layer's name.

    |.| is the Euclidean norm over all floating-point weights of the layer, in float64. Layers are in the model's
    order; those without weights in `base`, or whose weights are all 0 in it, are left out. So are weights of another
    shape, such as those of a new output layer.
    """
    squares: dict[str, tuple[float, float]] = {}
    for name, weight in tuned.items():
        before = base.get(name)
        if before is None or not weight.is_floating_point() or before.shape != weight.shape:
            continue
        start = before.double()
        moved, norm = squares.get(layer_of(name), (0.0, 0.0))
        squares[layer_of(name)] = (
            moved + float((weight.double() - start).square().sum()),
            norm + float(start.square().sum()),
        )
    return {layer: math.sqrt(moved / norm) for layer, (moved, norm) in squares.items() if norm > 0}


def layer_of(name: str) -> str:
    """Returns the layer of a weight: `model.encoder.layers.0` of `model.encoder.layers.0.fc1.weight`.

    That of a weight outside numbered layers is its module.
    """
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    return ".".join(parts[: number + 1] if number is not None else parts[:-1]) or name
