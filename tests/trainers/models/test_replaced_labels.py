"""Labels of which some clips have others."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from trainers.models.labels import Labels, ReplacedLabels, _write


@pytest.fixture
def labels(tmp_path: Path) -> Labels:
    _write(tmp_path / "labels.bin", iter([[[1, 1, 2], [3], [4, 5]]]), 3)
    return Labels(tmp_path / "labels.bin", 3)


def test_only_the_named_clips_have_others(labels: Labels) -> None:
    replaced = ReplacedLabels(labels, np.array([0, 2]), [np.array([7, 7, 7, 8], np.int32), np.array([9], np.int32)])
    for each in (replaced, pickle.loads(pickle.dumps(replaced))):
        assert [each[position] for position in range(len(each))] == [[7, 7, 7, 8], [3], [9]]
        assert each.lengths.tolist() == [4, 1, 1]
        assert each.repeats.tolist() == [2, 0, 0]


def test_without_others_labels_are_the_same(labels: Labels) -> None:
    replaced = ReplacedLabels(labels, np.array([], np.int64), [])
    assert [pickle.loads(pickle.dumps(replaced))[position] for position in range(3)] == [[1, 1, 2], [3], [4, 5]]
    assert replaced.lengths.tolist() == [3, 1, 2]
    assert replaced.repeats.tolist() == [1, 0, 0]
