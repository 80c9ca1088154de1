"""Segments are found for the clips that are trained on, each in its own language."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.trainers.prepared import prepared_train
from tests.trainers.synthetic import add_languages, config, write_corpus
from trainers.distributed.session import LocalSession
from trainers.models.families import family_of
from trainers.models.recognizer import Segment
from trainers.models.whisper.whisper_recognizer import WhisperRecognizer
from trainers.training.base.timed_labels import _found

# The last two are left out of training: without a text, and longer than the context of 3 s.
TEXTS, DURATIONS_S = ["今日は天気です", "danas je", "", "one two"], [0.5, 0.5, 0.5, 3.5]
SEGMENTS = {TEXTS[0]: ["今日は", "天気です"], TEXTS[1]: ["danas", "je"]}


def test_clips_that_are_trained_on_get_segments_in_their_own_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = add_languages(write_corpus(tmp_path, TEXTS, durations_s=DURATIONS_S), ["ja", "sr", "sr", "sr"])
    wanted, prepared = config(), prepared_train(manifest, str(tmp_path / "prepared"))
    family_of(wanted.model).write_description(tmp_path / "description", TEXTS, wanted.model)
    recognizer = family_of(wanted.model).load_recognizer(wanted.model, tmp_path / "description", 1)

    def segments(self: WhisperRecognizer, inputs: Any, labels: Any, autocast: Any) -> list[list[Segment]]:
        texts = [self.processor.tokenizer.decode(label, skip_special_tokens=True) for label in labels]
        return [[Segment(text, 0.2 * at, 0.2 * at + 0.2) for at, text in enumerate(SEGMENTS[each])] for each in texts]

    monkeypatch.setattr(WhisperRecognizer, "segments", segments)
    context: Any = SimpleNamespace(
        config=wanted, session=LocalSession(0, 1, 0), task=SimpleNamespace(sets={"train": prepared})
    )
    found = _found(context, recognizer, np.arange(4), "finding segments")
    assert [[text for text, _, _ in row["segments"]] for row in found] == [SEGMENTS[text] for text in TEXTS[:2]]
