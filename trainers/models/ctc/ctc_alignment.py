"""Which outputs of a CTC model say which label: the likeliest of all paths that come to a text. Pure."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt


def align(logprobs: npt.NDArray[np.float32], labels: Sequence[int], blank: int) -> list[tuple[int, int]]:
    """The outputs of each label, from the first to behind the last, by Viterbi's algorithm over labels and blanks.

    Of the labels that the best path comes to, the likeliest path is the best path itself.

    Args:
        logprobs: Log-softmax of one utterance's outputs, (T, V).
        labels: What they are to come to, L of them. Where T is too short for them, they share the outputs evenly.
        blank: The label of nothing.
    """
    outputs, count = len(logprobs), len(labels)
    # Blank, label, blank, …, label, blank: the states of Graves et al. (2006), section 4.1.
    states = np.full(2 * count + 1, blank)
    states[1::2] = labels
    # A blank between two labels may be left out, unless they are equal.
    skips = np.zeros(len(states), dtype=bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    score = np.full(len(states), -np.inf)
    score[:2] = logprobs[0, states[:2]]
    steps = np.zeros((outputs, len(states)), dtype=np.int8)
    for output in range(1, outputs):
        came = np.full((3, len(states)), -np.inf)
        came[0] = score
        came[1, 1:] = score[:-1]
        came[2, 2:] = np.where(skips[2:], score[:-2], -np.inf)
        steps[output] = came.argmax(axis=0)
        score = came.max(axis=0) + logprobs[output, states]
    state = len(states) - 1 - int(count > 0 and score[-2] >= score[-1])
    if not np.isfinite(score[state]):
        edges = np.linspace(0, outputs, count + 1).astype(int).tolist()
        return [*pairwise(edges)]
    path = np.empty(outputs, dtype=np.int64)
    for output in range(outputs - 1, -1, -1):
        path[output] = state
        state -= int(steps[output, state])
    found = [np.flatnonzero(path == 2 * place + 1) for place in range(count)]
    return [(int(own[0]), int(own[-1]) + 1) for own in found]
