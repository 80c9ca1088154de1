"""Files that every JSON reader takes: a number that JSON does not know is an error, by the field's name."""

import json
from typing import Any

import pytest

from trainers.errors import ScoringError
from trainers.run_folder.layout import RunFolder
from trainers.storage import Storage
from trainers.storage.json_files import finite, to_json, to_jsonl

NAN, INFINITY = float("nan"), float("inf")


def test_text_is_written_as_it_is_and_numbers_exactly() -> None:
    content = {"text": "čaša", "loss": 0.1 + 0.2, "none": None, "rows": [1, (2.5,)]}
    assert "čaša" in to_json(content, "a.json")
    assert json.loads(to_json(content, "a.json", indent=2)) == {**content, "rows": [1, [2.5]]}
    assert to_jsonl([{"a": 1}, {"a": 2}], "a.jsonl") == '{"a": 1}\n{"a": 2}\n'


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"wer": 1.0, "loss": NAN}, "loss is nan"),
        ({"test": {"full_context": {"loss": -INFINITY}}}, r"test\.full_context\.loss is -inf"),
        ({"rows": [{"wer": 1.0}, {"wer": INFINITY}]}, r"rows\[1\]\.wer is inf"),
    ],
)
def test_a_number_that_is_not_finite_is_an_error_by_its_field(content: dict[str, Any], field: str) -> None:
    with pytest.raises(ScoringError, match=rf"^test\.json: {field}, which JSON cannot represent"):
        to_json(content, "test.json")


def test_a_number_of_an_object_that_is_rendered_is_an_error_too() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"run": object()}, "the output", default=lambda _: {"wer": NAN})


def test_a_run_folder_holds_no_such_number(storage: Storage) -> None:
    folder = RunFolder(storage)
    with pytest.raises(ScoringError, match=r"evaluation/test\.jsonl: avg_logprob is nan"):
        folder.write_evaluation("test", {"wer": 1.0}, [{"id": "a", "avg_logprob": NAN}])
    with pytest.raises(ScoringError, match=r"result\.json: validation\.eval_loss is inf"):
        folder.write_json("result.json", {"validation": {"eval_loss": INFINITY}})
    assert list(storage.list_files()) == []


@pytest.mark.parametrize("value", [1, 1.5, "nan", None, [NAN]])
def test_what_is_finite_is_kept(value: object) -> None:
    assert finite(value) is value


def test_what_is_not_finite_is_left_out() -> None:
    assert [finite(value) for value in (NAN, INFINITY, -INFINITY)] == [None, None, None]
