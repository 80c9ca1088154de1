"""Confidence intervals of error rates, by resampling utterances or speakers.

Percentile intervals, see Bisani and Ney 2004, "Bootstrap estimates for confidence intervals in ASR performance
evaluation". Systems share each draw, so the interval of their difference accounts for errors in the same utterances.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
RESAMPLES = 5000
SEED = 0
# Maximum number of values that are drawn together, which limits the memory.
DRAWN_AT_ONCE = 1 << 21


class Interval(NamedTuple):
    """The bounds of a confidence interval."""

    low: float
    high: float


def resampled_rates(
    errors: npt.ArrayLike, lengths: npt.ArrayLike, *, resamples: int = RESAMPLES, seed: int = SEED
) -> npt.NDArray[np.float64]:
    """Returns resampled error rates in percent, shape (systems, resamples), each over N drawn items.

    `errors` are integers of shape (systems, N) for N utterances, or their sums for N speakers. `lengths` are the
    numbers of units in the references, shape (N,).
    """
    columns = np.vstack([np.asarray(errors), np.asarray(lengths)])
    count = columns.shape[1]
    generator = np.random.default_rng(seed)
    at_once = max(1, DRAWN_AT_ONCE // count)
    sums = []
    for start in range(0, resamples, at_once):
        drawn = generator.integers(0, count, (min(at_once, resamples - start), count))
        sums.append([column[drawn].sum(axis=1) for column in columns])
    totals = np.concatenate(sums, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rates: npt.NDArray[np.float64] = 100 * totals[:-1] / totals[-1]
    return rates


def rate_interval(errors: npt.ArrayLike, lengths: npt.ArrayLike) -> Interval | None:
    """Returns the interval of one system's error rate, whatever the order; arguments as in `resampled_rates`."""
    columns = np.array([errors, lengths])
    ordered = columns[:, np.lexsort(columns)]
    return interval(resampled_rates(ordered[:1], ordered[1])[0])


def interval(values: npt.NDArray[np.float64]) -> Interval | None:
    """Returns the percentile interval of the finite values; None if all draws had empty references."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    low, high = np.percentile(finite, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Interval(float(low), float(high))


def sums_by(names: Sequence[str], columns: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Returns columns of shape (K, utterances) summed by name, shape (K, different names)."""
    different, positions = np.unique(np.asarray(names), return_inverse=True)
    values = np.asarray(columns)
    sums = np.zeros((len(values), len(different)), dtype=np.int64)
    for row, column in zip(sums, values, strict=True):
        np.add.at(row, positions, column)
    return sums
