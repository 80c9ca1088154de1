"""One global batch has one gradient, however it is shared out over workers and forward passes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.prepared import prepared_train
from tests.trainers.synthetic import config, write_corpus
from tests.trainers.training.gradient_process import Job, one_step
from tests.trainers.training.rank_processes import run_ranks
from tests.trainers.training.trainer.accumulation_process import train_and_count
from trainers.models.families import family_of

# What a prepared set and a model are shared by, runs in one process.
pytestmark = pytest.mark.xdist_group("test_gradients")

# Labels of very different lengths, so that a mean of means is not the mean. Eleven: no split is even.
TEXTS = ["a", "one two three four five six seven", "no", "the quick brown fox jumps over the lazy dog", "x y"] * 2 + [
    ""
]
# Workers and forward passes; more of one alone is part of more of both.
SPLITS = [pytest.param(1, 4, marks=pytest.mark.long), pytest.param(2, 1, marks=pytest.mark.long), (2, 2), (3, 1)]
# Convolutions over samples add in another order for other batch sizes: measured up to 1.7e-5 of a norm of 98. The mean
# of another count, which this is to find, differs by more than 1e-3.
TOLERANCE = 1e-4
CTC = {"init": "scratch", "family": "ctc", "d_model": 16, "encoder_layers": 1, "attention_heads": 2}
MODELS: Mapping[str, dict[str, Any]] = {
    "whisper": {},
    "whisper matched": {
        "model.init": "pretrained",
        "model.full_context_matching": 1.0,
        "model.full_context_matching_fraction": 0.5,
    },
    "ctc layer norm": {"model": {**CTC, "architecture": "wav2vec2", "feature_encoder_dim": 8}},
    "ctc group norm": {
        "model": {**CTC, "architecture": "wav2vec2", "feature_encoder_dim": 8, "feat_extract_norm": "group"}
    },
    "ctc sum": {"model": {**CTC, "ctc_loss_reduction": "sum"}},
}
GLOBAL_BATCH = 10


@dataclass(frozen=True)
class Bench:
    """A prepared set and a model, shared by all splits."""

    job: Job
    model: Mapping[str, Any]
    root: Path

    def norm(self, workers: int, accumulation: int, *, plain_mean: bool = False) -> float:
        """The gradient norm of the first step, which all ranks must agree on."""
        folder = self.root / f"{workers}x{accumulation}-{plain_mean}"
        folder.mkdir()
        changes = {
            **self.model,
            "training.max_steps": 1,
            "training.global_batch_size": GLOBAL_BATCH,
            "training.gradient_accumulation_steps": accumulation,
            "training.logging_steps": 1,
            "training.max_grad_norm": 1e9,
            "training.report_to": [],
            "scaling.num_workers": workers,
        }
        job = replace(self.job, config=config(changes), folder=folder, plain_mean=plain_mean)
        run_ranks(one_step, workers, job)
        norms = {float((folder / f"norm_{rank}").read_text()) for rank in range(workers)}
        assert len(norms) == 1
        return norms.pop()


@pytest.fixture(scope="module", params=MODELS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.mktemp("gradients")
    manifest = write_corpus(root, TEXTS, durations_s=[2.6 + 0.03 * number for number in range(len(TEXTS))])
    prepared = prepared_train(manifest, str(root / "prepared"))
    changes, description = MODELS[request.param], root / "description"
    if "model.full_context_matching" in changes:
        write_weights(description)
        weights = {**changes, "model.name_or_path": str(description)}
        return Bench(Job(config(), prepared, None, root), weights, root)
    model = config(changes).model
    family_of(model).write_description(description, TEXTS, model)
    return Bench(Job(config(), prepared, description, root), changes, root)


def write_weights(folder: Path) -> None:
    """Weights of a Whisper whose own context is longer than the one that is trained at."""
    model = config({"model.max_context_s": 5}).model
    family = family_of(model)
    family.write_description(folder, TEXTS, model)
    family.load_recognizer(model, folder, seed=1).model.save_pretrained(folder)


@pytest.fixture(scope="module")
def whole(bench: Bench) -> float:
    """The norm of one worker with one forward pass."""
    return bench.norm(1, 1)


@pytest.mark.parametrize(("workers", "accumulation"), SPLITS)
@pytest.mark.integration
def test_the_gradient_does_not_depend_on_how_a_batch_is_shared_out(
    bench: Bench, whole: float, workers: int, accumulation: int
) -> None:
    assert whole > 0
    assert bench.norm(workers, accumulation) == pytest.approx(whole, rel=TOLERANCE)


@pytest.mark.integration
def test_with_a_plain_mean_it_would(bench: Bench, whole: float) -> None:
    assert bench.norm(1, 4, plain_mean=True) != pytest.approx(whole, rel=1e-3)


@pytest.mark.integration
def test_gradients_are_reduced_in_the_last_forward_pass_of_a_step_only(bench: Bench) -> None:
    folder = bench.root / "accumulation"
    folder.mkdir()
    changes = {
        **bench.model,
        "training.max_steps": 2,
        "training.global_batch_size": GLOBAL_BATCH,
        "training.gradient_accumulation_steps": 3,
        "training.report_to": [],
        "scaling.num_workers": 2,
    }
    job = replace(bench.job, config=config(changes), folder=folder)
    run_ranks(train_and_count, 2, job)
    for rank in (0, 1):
        first, second, third, *rest = (folder / f"reduced_{rank}").read_text().split()
        assert (first, second, int(third) > 0) == ("0", "0", True)
        # Eleven utterances: the epoch's last step is one of one.
        assert rest[:2] == ["0", "0"]
        assert int(rest[2]) > 0
