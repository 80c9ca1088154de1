"""The matched-pairs sentence-segment word error test (MAPSSWE) of two systems on the same utterances.

From Gillick and Cox 1989, "Some statistical issues in the comparison of speech recognition algorithms", as computed by
NIST's sc_stats (SCTK, src/sclite/mtchprs.c). Errors of neighboring words are not independent, so errors are counted in
segments. A segment ends where both systems have two correct units in a row.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# Number of consecutive units, correct in both systems, that end a segment; NIST's default.
GOOD_UNITS = 2
# The smallest p that is shown as a number.
LEAST_P = 0.001
# Alignment costs of NIST's sclite: SCTK, doc/sclite.htm, "DP alignment"; src/sclite/net_dp.c and word.c.
INSERTION = DELETION = 3
SUBSTITUTION = 4
Pair = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class MatchedPairs:
    """The result of a test. The null hypothesis is that the mean difference of the errors in a segment is 0.

    Attributes:
        segments: Number of segments in which at least one system has an error.
        differing: Number of these in which the systems do not have equally many.
        mean: Mean difference of the errors, first system minus second; `deviation` is the standard deviation (n - 1).
        z: The statistic; None if all segments have the same difference other than 0, so that the deviation is 0.
        p: Probability, under the null hypothesis, of a statistic at least as far from 0; two-sided. None without z.
        exact_p: The same without the assumption that the mean has a normal distribution, see `exchange_p`.
    """

    segments: int
    differing: int
    mean: float
    deviation: float
    z: float | None
    p: float | None
    exact_p: float

    @property
    def shown_p(self) -> str:
        """The p-value for a table, such as `0.031` or `<0.001`; a dash if it is None."""
        return "-" if self.p is None else f"<{LEAST_P}" if self.p < LEAST_P else f"{self.p:.3f}"


def p_value(p: float) -> str:
    """Returns `p = 0.031`, or `p < 0.001`."""
    return f"p < {LEAST_P}" if p < LEAST_P else f"p = {p:.3f}"


def matched_pairs(utterances: Iterable[tuple[Sequence[str], Sequence[str], Sequence[str]]]) -> MatchedPairs:
    """Tests two systems by the units of each utterance: of its reference, its first and its second hypothesis."""
    differences = [
        first - second
        for reference, one, other in utterances
        if one != reference or other != reference
        for first, second in segments_of(align(reference, one), align(reference, other))
    ]
    count, differing = len(differences), sum(difference != 0 for difference in differences)
    mean = math.fsum(differences) / count if count else 0.0
    squares, exact_p = math.fsum((difference - mean) ** 2 for difference in differences), exchange_p(differences)
    if squares == 0:
        same = mean == 0
        return MatchedPairs(count, differing, mean, 0.0, 0.0 if same else None, 1.0 if same else None, exact_p)
    deviation = math.sqrt(squares / (count - 1))
    z = mean / (deviation / math.sqrt(count))
    return MatchedPairs(count, differing, mean, deviation, z, math.erfc(abs(z) / math.sqrt(2)), exact_p)


def exchange_p(differences: Iterable[int]) -> float:
    """Returns the probability that random signs of the differences give a sum at least as far from 0; two-sided.

    Fisher's randomization test: if the systems do not differ, the errors of both in a segment could be exchanged. Exact
    also for few segments, and for segments that all have the same difference.
    """
    given = [difference for difference in differences if difference]
    # The distribution of the sum of the positive differences, for each size of a difference.
    distribution = np.ones(1)
    for size, count in Counter(map(abs, given)).items():
        logs = [math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(count + 1)]
        of_size = np.zeros(size * count + 1)
        of_size[::size] = np.exp(np.array(logs) - count * math.log(2))
        distribution = np.convolve(distribution, of_size)
    distances = np.abs(2 * np.arange(len(distribution)) - (len(distribution) - 1))
    return min(1.0, float(distribution[distances >= abs(sum(given))].sum()))


def segments_of(first: Sequence[Pair], second: Sequence[Pair]) -> Iterator[tuple[int, int]]:
    """Yields the errors of both systems in each segment of an utterance, by their alignments with its reference."""
    errors = [0, 0]
    good = GOOD_UNITS
    for units in zip(_by_unit(first), _by_unit(second), strict=True):
        for system, (inserted, is_right) in enumerate(units):
            errors[system] += inserted + (is_right is False)
        if any(inserted for inserted, _ in units):
            good = 0
        good = good + 1 if all(is_right for _, is_right in units) else 0
        if good >= GOOD_UNITS and errors != [0, 0]:
            yield errors[0], errors[1]
            errors = [0, 0]
    if errors != [0, 0]:
        yield errors[0], errors[1]


def _by_unit(pairs: Sequence[Pair]) -> Iterator[tuple[int, bool | None]]:
    """Yields the insertions before each unit of the reference, and whether the unit is correct; finally, the rest."""
    inserted = 0
    for unit, other in pairs:
        if unit is None:
            inserted += 1
        else:
            yield inserted, unit == other
            inserted = 0
    yield inserted, None


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Pair]:
    """Returns aligned pairs of units of reference and hypothesis, in order; None for a missing unit.

    Uses the costs of sclite, and its choice among alignments of equal cost.
    """
    # Equal units at the end are always aligned with each other, which is not true for those at the beginning.
    rows, columns = len(reference), len(hypothesis)
    while rows and columns and reference[rows - 1] == hypothesis[columns - 1]:
        rows, columns = rows - 1, columns - 1
    same = [*zip(reference[rows:], hypothesis[columns:], strict=True)]
    pairs: list[Pair] = [*reversed(same)]
    costs = _costs(reference[:rows], hypothesis[:columns]) if rows and columns else []
    while rows and columns:
        unit, other = reference[rows - 1], hypothesis[columns - 1]
        replaced = costs[rows - 1][columns - 1] + (0 if unit == other else SUBSTITUTION)
        deleted, inserted = costs[rows - 1][columns] + DELETION, costs[rows][columns - 1] + INSERTION
        if replaced <= min(deleted, inserted):
            pairs.append((unit, other))
            rows, columns = rows - 1, columns - 1
        elif deleted < inserted:
            pairs.append((unit, None))
            rows -= 1
        else:
            pairs.append((None, other))
            columns -= 1
    pairs += [(unit, None) for unit in reversed(reference[:rows])]
    pairs += [(None, other) for other in reversed(hypothesis[:columns])]
    return pairs[::-1]


def _costs(reference: Sequence[str], hypothesis: Sequence[str]) -> list[list[int]]:
    """Returns the minimum cost for the first r units of the reference and the first h of the hypothesis, at [r][h]."""
    numbers = {unit: number for number, unit in enumerate({*reference, *hypothesis})}
    columns = np.array([numbers[unit] for unit in hypothesis])
    inserted = INSERTION * np.arange(len(hypothesis) + 1)
    costs = np.empty((len(reference) + 1, len(hypothesis) + 1), dtype=np.int64)
    costs[0] = inserted
    for row, unit in enumerate(reference, start=1):
        above, here = costs[row - 1], costs[row]
        np.add(above, DELETION, out=here)
        np.minimum(here[1:], above[:-1] + SUBSTITUTION * (columns != numbers[unit]), out=here[1:])
        # Insertions may follow any of these.
        here -= inserted
        np.minimum.accumulate(here, out=here)
        here += inserted
    found: list[list[int]] = costs.tolist()
    return found
