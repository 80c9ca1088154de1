from dataclasses import replace

import numpy as np
import pytest

from tests.trainers.synthetic import config
from trainers.data.batch_plan import BatchPlan, BatchShape, Selection
from trainers.models.label_codec import Limits
from trainers.training.planning import cut_references, small_set_note, validation_options

LIMITS = Limits(context_s=30.0, label_tokens=448, prefix_tokens=0, new_tokens=444)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ([10, 225], None),
        ([10, 226, 300], "2 references are longer than the 225 tokens .* raise decode.max_length to 300"),
        ([500], "1 reference is .* raise decode.max_length to 444"),
    ],
)
def test_references_longer_than_a_hypothesis_are_reported(wanted: list[int], said: str | None) -> None:
    found = cut_references(config(), LIMITS, np.array(wanted))
    if said is None:
        assert found is None
    else:
        with pytest.raises(AssertionError, match=said):
            assert found is None, found


def test_where_the_model_itself_is_the_bound_no_setting_helps() -> None:
    found = cut_references(config({"decode.max_length": 444}), LIMITS, np.array([445]))
    assert found is not None and found.endswith("shorten or split them")


@pytest.mark.parametrize(
    ("context_s", "is_wanted", "whole_s"), [(3, True, 30.0), (3, False, None), (30, True, None), (None, True, None)]
)
def test_a_shortened_model_is_validated_at_its_whole_context_where_that_is_asked_for(
    context_s: int | None, is_wanted: bool, whole_s: float | None
) -> None:
    limits = replace(LIMITS, full_context=True)
    shortened = config({"data.normalizer": "basic", "model.max_context_s": context_s})
    assert validation_options(shortened, limits, full_context=is_wanted).full_context_s == whole_s


@pytest.mark.parametrize(("clips", "is_small"), [(7, True), (8, False), (20, False)])
def test_a_batch_that_is_larger_than_the_set_is_told(clips: int, *, is_small: bool) -> None:
    selection = Selection(np.arange(clips), np.full(clips, 1.0), np.zeros(clips, np.int64))
    shape = BatchShape.resolve(workers=2, per_device=2, accumulation=2)
    note = small_set_note(BatchPlan(selection, shape, edges_s=(30.0,), seed=1))
    assert (note or "").startswith("each step has all 7 clips of the training set") is is_small
    assert (note is not None) is is_small
