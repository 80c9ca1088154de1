"""Errors in a recipe that are found when it is read, before any preflight check."""

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.preflight.contexts import repository, spec_in
from trainers.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"training.save_steps": 250, "training.eval_steps": 100},
            "save_steps 250 must be a multiple of eval_steps 100",
        ),
        ({"checkpoint.checkpoint_score_attribute": "eval_loss"}, "checkpoint.checkpoint_score_attribute: "),
        ({"checkpoint.checkpoint_score_attribute": "test_wer"}, "checkpoint.checkpoint_score_attribute: "),
        ({"data.test": "/data/valid.csv"}, "test is /data/valid.csv, which is also train or validation"),
        ({"data.validation": "/data/train.csv"}, "train and validation are both /data/train.csv"),
    ],
)
def test_a_recipe_with_it_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec_in(repository(tmp_path), changes)
    assert words in str(caught.value)
