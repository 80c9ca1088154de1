"""What preflight says of CTC models."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainers.inspection.checking import levels, said, subject_of
from trainers.errors import ConfigError
from trainers.inspection.model_checks import CHECKS, check_labels
from trainers.inspection.subject import Subject

MODEL: dict[str, Any] = {"init": "scratch", "family": "ctc", "d_model": 16, "encoder_layers": 1, "attention_heads": 2}


def test_a_sound_recipe_is_found_sound(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, {"model": MODEL})
    for check in CHECKS:
        assert levels(check, subject) <= {"ok", "skipped"}, check.name


@pytest.mark.parametrize("architecture", ["wav2vec2", "wav2vec2-bert"])
def test_clips_with_fewer_outputs_than_labels_are_found_and_named(tmp_path: Path, architecture: str) -> None:
    subject = subject_of(tmp_path, {"model": {**MODEL, "architecture": architecture}})
    # Half a second has 24 outputs.
    train = subject.split("train")
    assert train is not None
    train.texts[0] = "t" * 13
    (text,) = (text for text in warnings(subject) if text.startswith("train: "))
    assert text.startswith("train: 1 of 4 transcripts have more label tokens") and train.ids[0] in text
    train.texts[0] = "te" * 11
    assert not [text for text in warnings(subject) if text.startswith("train: ")]


def test_characters_that_training_has_not_are_named(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, {"model": MODEL})
    validation = subject.split("validation")
    assert validation is not None
    validation.texts[0] = "twelve ж"
    (text,) = warnings(subject)
    assert text.startswith("validation: 1 of 16 characters are not in the vocabulary (ж)")


def warnings(subject: Subject) -> list[str]:
    return [text for level, text in said(check_labels, subject) if level == "warning"]


def test_a_field_of_another_family_is_an_unknown_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.dropout: unknown key: a field of the family whisper"):
        subject_of(tmp_path, {"model": {**MODEL, "dropout": 0.1}})
