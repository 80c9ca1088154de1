"""A hypothesis aligned with its reference as NIST's sclite does it: by its costs, and by its choice among equal ones.

SCTK, doc/sclite.htm, "DP alignment"; src/sclite/net_dp.c and word.c.
"""

from collections.abc import Sequence

import numpy as np

INSERTION = DELETION = 3
SUBSTITUTION = 4

Pair = tuple[str | None, str | None]


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Pair]:
    """Pairs of a unit of the reference and one of the hypothesis, in order; None where the other has none."""
    # Units at the end that are equal are always aligned with each other; those at the beginning not always.
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
    """Of the first r units of the reference and the first h of the hypothesis, the least cost, at [r][h]."""
    numbers = {unit: number for number, unit in enumerate({*reference, *hypothesis})}
    columns = np.array([numbers[unit] for unit in hypothesis])
    inserted = INSERTION * np.arange(len(hypothesis) + 1)
    costs = np.empty((len(reference) + 1, len(hypothesis) + 1), dtype=np.int64)
    costs[0] = inserted
    for row, unit in enumerate(reference, start=1):
        above, here = costs[row - 1], costs[row]
        np.add(above, DELETION, out=here)
        np.minimum(here[1:], above[:-1] + SUBSTITUTION * (columns != numbers[unit]), out=here[1:])
        # Insertions after whichever of these is the cheapest way to get there.
        here -= inserted
        np.minimum.accumulate(here, out=here)
        here += inserted
    found: list[list[int]] = costs.tolist()
    return found
