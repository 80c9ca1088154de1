"""`training.max_batch_duration_s` bounds the memory of each family's batches, by what utterances cost."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.contract.family_cases import CASES, plug_in, write_tiny
from tests.trainers.synthetic import config, speechlike
from trainers.data.batch_plan import BatchPlan, BatchShape, FloatArray, IntArray, Selection, bucket_edges
from trainers.data.features import LENGTHS
from trainers.models.families import resolve_model
from trainers.models.recognizer import Recognizer, Target

CLIPS, BOUND_S, CONTEXT_S = 60, 6.0, 2.0
TEXT, TOKENS_PER_SECOND = "one two three " * 20, 8
DURATIONS_S = np.random.default_rng(1).uniform(0.5, CONTEXT_S, CLIPS)


@pytest.fixture
def recognizer(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recognizer:
    plug_in(monkeypatch)
    case = CASES[request.param]
    write_tiny(case, tmp_path)
    resolved, family = resolve_model(config({"model": {"name_or_path": str(tmp_path), **case.model}}))
    loaded = family.load_recognizer(resolved.model, None, seed=1)
    loaded.model.train()
    return loaded


def kept_bytes(recognizer: Recognizer, durations_s: Sequence[float], labels: Sequence[int], edge_s: float) -> int:
    """Bytes of what a forward pass keeps for the backward one, weights left out."""
    weights = {weight.untyped_storage().data_ptr() for weight in recognizer.model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in weights:
            # Kept alive, so that no later tensor has its place.
            kept[place] = tensor
        return tensor

    clips = [torch.from_numpy(speechlike(seconds)) for seconds in durations_s]
    given = recognizer.new_features().inputs(clips, edge_s)
    lengths = given.pop(LENGTHS, None)
    (ids,) = recognizer.encode_labels([TEXT])
    rows = [ids[recognizer.limits.prefix_tokens :][:count] for count in labels]
    collated = recognizer.collate_labels(rows, [len(clip) for clip in clips])
    targets = collated.pop("labels")
    with (
        recognizer.with_input_length(given),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        recognizer.loss(recognizer.model(**given, **collated), Target(targets, lengths), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def most_bytes(recognizer: Recognizer, labels: IntArray, *, with_cost: bool = True) -> int:
    """Of the batches of an epoch over clips with so many labels."""

    def costs_of(edge_s: float, positions: IntArray) -> FloatArray:
        return recognizer.cost(edge_s, labels[positions])

    plan = BatchPlan(
        Selection(np.arange(CLIPS), DURATIONS_S, np.zeros(CLIPS, np.int64)),
        BatchShape.resolve(workers=1, per_device=1, accumulation=1, max_batch_duration_s=BOUND_S),
        edges_s=bucket_edges(CONTEXT_S, bucketed=True),
        seed=1,
        costs_of=costs_of if with_cost else None,
    )
    # One clip alone may exceed the bound.
    batches = [batch for batch in plan.epoch(0) if len(batch.rows) > 1]
    return max(
        kept_bytes(recognizer, DURATIONS_S[batch.rows].tolist(), labels[batch.rows].tolist(), batch.edge_s)
        for batch in batches
    )


@pytest.mark.parametrize("recognizer", CASES, indirect=True)
def test_batches_of_speech_take_about_what_the_bound_takes_in_long_clips(recognizer: Recognizer) -> None:
    longest = [CONTEXT_S] * int(BOUND_S / CONTEXT_S)
    bound = kept_bytes(recognizer, longest, [round(TOKENS_PER_SECOND * CONTEXT_S)] * len(longest), CONTEXT_S)
    assert most_bytes(recognizer, np.rint(TOKENS_PER_SECOND * DURATIONS_S).astype(np.int64)) < 1.5 * bound


@pytest.mark.parametrize("recognizer", ["parakeet-tdt"], indirect=True)
@pytest.mark.integration
def test_a_transducer_takes_no_more_with_labels_than_its_padded_seconds_do_without(recognizer: Recognizer) -> None:
    labels = np.random.default_rng(1).integers(1, 60, CLIPS)
    bound = kept_bytes(recognizer, [CONTEXT_S] * int(BOUND_S / CONTEXT_S), [1] * int(BOUND_S / CONTEXT_S), CONTEXT_S)
    assert most_bytes(recognizer, labels) < 1.1 * bound
    assert most_bytes(recognizer, labels, with_cost=False) > 1.5 * bound, "its seconds alone do not bound it"
