"""The same counts, however many ranks score and however large their batches are, in float32 without TF32."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.device import NAME, ON_GPU
from tests.gpu.runs import run_here
from trainers.config.schema import TrainConfig
from trainers.data.prepared_set import PreparedSet
from trainers.distributed.session import LocalSession
from trainers.models.families import family_of_folder
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.splits import prepare_all
from trainers.scoring.scorer import Scorer, SplitScore
from trainers.training.planning import scored_clips, scoring_options

WAYS = [(workers, batch) for workers in (1, 2, 3) for batch in (1, 8, 32)]
STEPS = 60 if ON_GPU else 6
CTC = {"init": "scratch", "family": "ctc", "architecture": "wav2vec2", "d_model": 32, "feature_encoder_dim": 16}
# CTC has no decode.max_length, which other recipes of this suite set.
MODELS: dict[str, dict[str, Any]] = {"whisper": {}, "ctc": {"model": {**CTC, "encoder_layers": 1}, "decode": {}}}


class NotAllHereError(Exception):
    """Some of the ranks have yet to take their turn."""


@dataclass(frozen=True)
class InTurn(LocalSession):
    """One of several ranks that share this process, and its GPU, one after the other."""

    parts: list[Any] = field(default_factory=list)

    def gather(self, value: Any, what: str) -> list[Any]:
        self.parts.append(value)
        if len(self.parts) < self.world_size:
            raise NotAllHereError
        return self.parts


def score(trained: TrainConfig, prepared: PreparedSet, workers: int, batch: int) -> SplitScore:
    """The test set's score of some ranks."""
    folder = Path(f"{trained.run.storage_path}/{trained.run.name}/model")
    recognizer = family_of_folder(folder).open_exported(folder)
    recognizer.model.to(NAME)
    part = trained.training.model_copy(update={"per_device_eval_batch_size": batch})
    options = scoring_options(trained.model_copy(update={"training": part}), recognizer.limits)
    clips, parts = scored_clips(trained, prepared, recognizer, "test"), list[Any]()
    for rank in range(workers):
        scorer = Scorer(clips, recognizer, InTurn(rank, workers, rank, parts=parts), cache_bytes=0)
        try:
            return scorer.score(options)
        except NotAllHereError:
            continue
    raise AssertionError("the last rank has all parts")


@pytest.mark.parametrize("name", MODELS)
def test_nine_ways_of_scoring_give_one_result(name: str, exact: None, corpus: Path, tmp_path: Path) -> None:
    changes = {"training.max_steps": STEPS, "training.save_steps": STEPS, "model.dropout": 0.0, **MODELS[name]}
    trained = run_here(corpus, tmp_path, name, changes)
    prepared = prepare_all(trained, LocalEngine(), ("test",))["test"]
    results = {way: score(trained, prepared, *way) for way in WAYS}
    first = results[1, 1]
    assert first.score.scored == 12
    for way, result in results.items():
        assert result.score == first.score, f"workers, batch = {way}"
        assert [item.hypothesis for item in result.utterances] == [item.hypothesis for item in first.utterances], way
        assert result.loss == pytest.approx(first.loss, rel=1e-5), f"workers, batch = {way}"
