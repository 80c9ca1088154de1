"""Averages the weights of models that have the same architecture.

Wortsman et al. 2022, "Model soups": the average of models that were trained from the same weights often scores better
than each of them.
"""

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
