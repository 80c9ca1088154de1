from typing import Any

import pytest

from jobs.model import Progress
from jobs.submission.ray_request import stop_grace_s


def config(grace_s: int | None = None) -> dict[str, Any]:
    return {"trainer": "huggingface", "job": {"stop_grace_s": grace_s}}


def test_what_the_config_says_counts() -> None:
    assert stop_grace_s(config(7), Progress(phase="TRAINING", checkpoint_s=999.0)) == 7


def test_an_attempt_has_ten_minutes_before_anything_was_measured() -> None:
    assert stop_grace_s(config(), None) == 600


@pytest.mark.parametrize(("checkpoint_s", "grace_s"), [(None, 600), (100.0, 300), (1.0, 120), (5000.0, 3600)])
def test_the_next_attempt_goes_by_what_was_measured(checkpoint_s: float | None, grace_s: int) -> None:
    assert stop_grace_s(config(), Progress(phase="TRAINING", checkpoint_s=checkpoint_s)) == grace_s
