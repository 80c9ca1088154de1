"""The section of a report that compares a model with its base."""

from typing import Any

import pytest

from trainers.scoring.report.base_section import CandidateRow, Change, base_section

VERDICT = {
    "judgment": "better",
    "metric": "wer",
    "base": 15.4,
    "tuned": 9.8,
    "difference": -5.6,
    "interval": None,
    "p": 0.01,
    "segments": 40,
}


def test_sets_have_their_rates_and_verdicts() -> None:
    result: dict[str, Any] = {
        "base": {"validation": {"wer": 12.0}, "test": {"wer": 15.4}, "silence": {"words_per_minute": 0.0}},
        "validation": {"eval_wer": 10.0},
        "test": {"wer": 9.8},
        "guards": {"silence": {"words_per_minute": 1.52}},
        "verdicts": {
            "test": VERDICT,
            "new_speakers": {**VERDICT, "judgment": "worse", "tuned": 16.0, "difference": 0.6},
        },
        "layer_distances": {"encoder.layers.0": 0.01},
    }
    section = base_section(result, "en")
    assert section is not None
    assert section.changes == [
        Change("validation", "WER", "12.00%", "10.00%", ""),
        Change("test", "WER", "15.40%", "9.80%", "better: WER -5.60 points, p = 0.010"),
        Change("silence", "words per minute", "0.0", "1.5", ""),
        Change("new_speakers", "WER", "15.40%", "16.00%", "worse: WER +0.60 points, p = 0.010"),
    ]
    assert section.distances == {"encoder.layers.0": 0.01}


def test_a_short_context_compares_at_the_full_one() -> None:
    base = {"validation": {"wer": 800.0, "full_context": {"wer": 12.0}}}
    result = {"base": base, "validation": {"eval_wer": 9.0, "eval_full_context_wer": 10.0}}
    section = base_section(result, "en")
    assert section is not None
    assert section.changes == [Change("validation", "WER", "12.00%", "10.00%", "")]


def test_languages_without_spaces_have_their_rate() -> None:
    section = base_section({"base": {"validation": {"cer": 12.0}}, "validation": {"eval_cer": 10.0}}, "th")
    assert section is not None
    assert section.changes == [Change("validation", "CER", "12.00%", "10.00%", "")]


def test_candidates_have_the_rates_that_decide() -> None:
    one = {"of": "the best checkpoint", "eval_wer": 9.0, "eval_cer": 3.0, "eval_full_context_wer": 8.0}
    candidates = [
        {**one, "share": 0.5, "name": "half", "eval_librispeech_wer": 11.0, "eval_librispeech_cer": 4.0},
        {**one, "share": 1.0, "name": "all", "eval_librispeech_wer": 14.0, "eval_refused": 1.0},
    ]
    section = base_section(
        {"weights": {"name": "half", "ranks": "eval_full_context_wer", "candidates": candidates}}, "en"
    )
    assert section is not None and section.changes == []
    assert section.candidates == [
        CandidateRow("half", {"full context wer": "8.00", "librispeech wer": "11.00"}, "chosen"),
        CandidateRow("all", {"full context wer": "8.00", "librispeech wer": "14.00"}, "refused"),
    ]


@pytest.mark.parametrize("base", [None, {}])
def test_a_run_without_scores_of_its_base_has_no_section(base: dict[str, Any] | None) -> None:
    assert base_section({"base": base}, "en") is None
