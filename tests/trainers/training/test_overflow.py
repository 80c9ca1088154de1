"""A step that fp16 skips, since it overflowed, leaves nothing in the losses that are logged later."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Seq2SeqTrainer

from trainers.training.trainer import SpeechTrainer


@pytest.mark.parametrize(("fp16", "given"), [(True, 0.0), (False, float("inf"))])
def test_the_loss_of_an_overflow_is_not_summed(fp16: bool, given: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seq2SeqTrainer, "training_step", lambda *_: torch.tensor(float("inf")))
    trainer: Any = SpeechTrainer.__new__(SpeechTrainer)
    trainer.args, trainer._recognizer = SimpleNamespace(fp16=fp16), SimpleNamespace(matching=None)
    trainer._ahead, trainer._passes = None, 0
    assert float(trainer.training_step()) == given
