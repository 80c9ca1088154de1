"""What preflight says of a beam search."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.inspection.checking import levels, said, subject_of, the_one
from tests.trainers.models.decoding.ngrams import HAS_WHEELS, Ngrams
from tests.trainers.pipeline.transcription.tiny_models import write_ctc
from trainers.config import optional_packages
from trainers.inspection.model_checks import check_decoding, check_model
from trainers.inspection.subject import Subject

MODEL: dict[str, Any] = {"init": "scratch", "family": "ctc", "d_model": 16, "encoder_layers": 1, "attention_heads": 2}

pytestmark = pytest.mark.skipif(not HAS_WHEELS, reason="flashlight-text has no wheels for this Python")


def searching(folder: Path, content: str | None = "one\ntwo\nten\n", **fields: Any) -> Subject:
    """A sound recipe with a word list, and further fields of decode."""
    if content is not None:
        (folder / "words.txt").write_text(content)
    changes = {"decode.method": "beam", "decode.lexicon": str(folder / "words.txt")}
    changes |= {f"decode.{name}": value for name, value in fields.items()}
    return subject_of(folder, {"model": MODEL, **changes})


def test_a_sound_search_is_found_sound(tmp_path: Path) -> None:
    arpa = Ngrams(["one two", "ten"]).write(tmp_path / "lm.arpa")
    subject = searching(tmp_path, lm=str(arpa))
    assert levels(check_decoding, subject) == {"ok"}
    texts = " ".join(text for _, text in said(check_decoding, subject))
    assert "ARPA of order 2" in texts and "spells all of 3 words" in texts and "20 weights are tried" in texts
    assert "no search" in the_one(check_decoding, subject_of(tmp_path, {"model": MODEL}), "ok")


def test_words_that_the_vocabulary_cannot_spell_are_counted_and_named(tmp_path: Path) -> None:
    text = the_one(check_decoding, searching(tmp_path, "one\nžena\n"), "warning")
    assert "1 of 2 words cannot be spelled in the model's vocabulary (žena)" in text
    assert "1 of 1 words cannot be spelled" in the_one(check_decoding, searching(tmp_path, "ONE"), "error")


def test_words_that_the_language_model_does_not_know_are_named(tmp_path: Path) -> None:
    arpa = Ngrams(["one two"]).write(tmp_path / "lm.arpa")
    assert "1 of 3 words of decode.lexicon are not in" in the_one(
        check_decoding, searching(tmp_path, lm=str(arpa)), "warning"
    )


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"lm": "/nowhere.arpa"}, "decode.lm: /nowhere.arpa: no such file"),
        ({"rescoring_model": "/nowhere"}, "decode.rescoring_model: /nowhere cannot be opened"),
    ],
)
def test_what_is_missing_here_may_be_there_where_the_job_runs(
    tmp_path: Path, fields: dict[str, Any], wanted: str
) -> None:
    subject = searching(tmp_path, **fields)
    assert wanted in the_one(check_decoding, subject, "error")
    elsewhere = Subject(subject.config, elsewhere=True)
    assert wanted in the_one(check_decoding, elsewhere, "skipped")


def test_what_is_no_language_model_is_a_problem_wherever_the_job_runs(tmp_path: Path) -> None:
    (tmp_path / "lm").write_text("one two")
    subject = Subject(searching(tmp_path, lm=str(tmp_path / "lm")).config, elsewhere=True)
    assert "its first line is 'one two'" in the_one(check_decoding, subject, "error")


def test_a_library_that_is_not_installed_is_named_with_the_fix_for_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: None)
    text = the_one(check_decoding, searching(tmp_path), "error")
    assert "pip install 'rayscribe[lm]' (on a cluster: job.runtime_env.pip)" in text


def test_a_search_of_another_family_s_model_is_a_problem(tmp_path: Path) -> None:
    write_ctc(tmp_path / "ctc")
    weights = {"model": {"name_or_path": str(tmp_path / "ctc")}}
    text = the_one(check_model, subject_of(tmp_path, {**weights, "decode.num_beams": 4}), "error")
    assert f"{tmp_path}/ctc is of the family ctc: 1 problem" in text
    assert re.search(r"decode\.num_beams: unknown key: a field of the family .*seq2seq.*, not of ctc \(got 4\)", text)
    assert levels(check_model, subject_of(tmp_path, {**weights, "decode.method": "beam"})) == {"ok"}
