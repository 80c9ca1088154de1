"""Batches that are read, and copied, before they are asked for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainers.synthetic import config, write_corpus
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.training.trainer.planned_batches import BatchesAhead
from trainers.training.trainer.speech_trainer import SpeechTrainer

CPU = torch.device("cpu")


def counted(read: list[int]) -> Iterator[dict[str, Any]]:
    for number in range(3):
        read.append(number)
        yield {"labels": torch.tensor([number]), "inputs": {"mask": torch.ones(1)}, "sizes": [number], "edge_s": 1.0}


def test_they_come_in_order_and_one_is_read_for_each_request() -> None:
    read: list[int] = []
    ahead = BatchesAhead(counted(read), CPU)
    assert read == []
    first = next(ahead)
    assert read == [0]
    ahead.fetch()
    ahead.fetch()
    assert read == [0, 1, 2]
    ahead.fetch()
    rest = list(ahead)
    assert [int(batch["labels"]) for batch in (first, *rest)] == [0, 1, 2]
    assert [batch["sizes"] for batch in rest] == [[1], [2]]


@pytest.mark.integration
def test_a_run_of_them_comes_out_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train", "validation"):
        write_corpus(tmp_path, ["one", "two", "three", "four", "five"], durations_s=[1, 2, 0.5, 1, 2], name=name)
    data = {name: str(tmp_path / f"{name}.csv") for name in ("train", "validation")}
    changes = {
        "run.storage_path": str(tmp_path / "runs"),
        "data": data,
        "model.dropout": 0.1,
        "training.max_steps": 4,
        "training.per_device_train_batch_size": 1,
        "training.gradient_accumulation_steps": 2,
        "training.report_to": [],
    }
    fit(config({**changes, "run.name": "plain"}), LocalEngine())
    original, fetched = SpeechTrainer.get_batch_samples, []

    def as_on_a_gpu(self: SpeechTrainer, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        if self._ahead is None or self._ahead.batches is not epoch_iterator:
            self._ahead = BatchesAhead(epoch_iterator, device)
        fetched.append(len(self._ahead._waiting))
        return original(self, self._ahead, num_batches, device)

    monkeypatch.setattr(SpeechTrainer, "get_batch_samples", as_on_a_gpu)
    fit(config({**changes, "run.name": "ahead"}), LocalEngine())
    assert 2 in fetched, "a step's batches were there before it began"
    plain, ahead = (tmp_path / "runs" / name / "model" / "model.safetensors" for name in ("plain", "ahead"))
    assert plain.read_bytes() == ahead.read_bytes()
