"""The likeliest alignment of labels: by trying all paths, and of the best path itself."""

from itertools import groupby, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.models.ctc.ctc_recognizer import align

BLANK, SYMBOLS = 0, 3


def logprobs_of(outputs: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(outputs, SYMBOLS)).astype(np.float32)
    found: np.ndarray = values - np.log(np.exp(values).sum(axis=1, keepdims=True))
    return found


def collapsed(path: tuple[int, ...]) -> list[int]:
    return [symbol for symbol, _ in groupby(path) if symbol != BLANK]


@given(st.integers(1, 6), st.integers(0, 10**6), st.lists(st.integers(1, SYMBOLS - 1), max_size=4))
def test_it_is_the_likeliest_of_all_paths(outputs: int, seed: int, labels: list[int]) -> None:
    logprobs = logprobs_of(outputs, seed)
    paths = [path for path in product(range(SYMBOLS), repeat=outputs) if collapsed(path) == labels]
    spans = align(logprobs, labels, BLANK)
    assert len(spans) == len(labels)
    if not paths:
        return
    best = max(paths, key=lambda path: float(logprobs[range(outputs), path].sum()))
    found = np.full(outputs, BLANK)
    for label, (start, end) in zip(labels, spans, strict=True):
        found[start:end] = label
    assert tuple(found) == best


@given(st.integers(1, 200), st.integers(0, 10**6))
def test_of_the_best_paths_labels_it_is_the_best_path(outputs: int, seed: int) -> None:
    logprobs = logprobs_of(outputs, seed)
    path = logprobs.argmax(axis=1)
    found = np.full(outputs, BLANK)
    labels = collapsed(tuple(path.tolist()))
    for label, (start, end) in zip(labels, align(logprobs, labels, BLANK), strict=True):
        found[start:end] = label
    assert found.tolist() == path.tolist()


@pytest.mark.parametrize("labels", [[1, 1, 1, 2], [1, 2, 1, 2, 1, 2, 1]])
def test_labels_that_no_path_comes_to_share_the_outputs(labels: list[int]) -> None:
    spans = align(logprobs_of(5, 0), labels, BLANK)
    assert len(spans) == len(labels)
    assert (spans[0][0], spans[-1][1]) == (0, 5)
