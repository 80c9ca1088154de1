"""What is said of a score."""

import pytest

from tests.trainers.synthetic import config
from trainers.pipeline.evaluate import RunResult


@pytest.mark.parametrize(
    ("totals", "language", "said"),
    [
        ({"wer": 89.9, "cer": 95.0}, "english", None),
        ({"wer": 90.0, "cer": 70.0}, "english", "at WER 90.0% the model recognizes next to nothing yet"),
        ({"wer": 100.0, "cer": 12.0}, "thai", None),
        ({"wer": 100.0, "cer": 212.5}, "thai", "at CER 212.5%, WER 100.0% the model recognizes next to nothing yet"),
        ({"wer": None, "cer": None}, "english", None),
    ],
)
def test_a_model_that_recognizes_nothing_is_warned_of(
    totals: dict[str, float | None], language: str, said: str | None
) -> None:
    result = RunResult("/runs/a", totals, "test", config({"model.language": language}).model)
    assert (said is None and result.warning is None) or (said is not None and said in str(result.warning))
