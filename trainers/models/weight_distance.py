"""Measures how far a training has moved the weights of each layer. Pure."""

import math
from collections.abc import Mapping

import torch

Weights = Mapping[str, torch.Tensor]


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
