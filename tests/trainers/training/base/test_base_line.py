"""The line about initial weights has their rates on all sets, at the model's own context."""

from typing import Any

from trainers.training.base.base_scores import base_line


def test_each_set_has_its_rates() -> None:
    scores: dict[str, dict[str, Any]] = {
        "validation": {"language": "English", "full_context": {"wer": 15.4, "cer": 5.0}},
        "far": {"language": "Japanese", "wer": 80.0, "cer": 12.25},
        "silence": {"words_per_minute": 2.25},
    }
    assert base_line(scores) == "base: validation WER 15.4% · far CER 12.2%, WER 80.0% · silence 2.2 words/min"
