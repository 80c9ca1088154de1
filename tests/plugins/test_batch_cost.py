"""What utterances cost a batch bounds its memory, also where that grows with the labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.plugins.test_tenants import TENANTS, named
from tests.trainers.synthetic import speechlike
from trainers.data.batch_plan import BatchPlan, BatchShape, Selection, bucket_edges
from trainers.data.features.model_input import LENGTHS
from trainers.models import families
from trainers.models.recognizer import Recognizer, Target

CLIPS, MOST_S, CONTEXT_S = 60, 6.0, 4.0


@pytest.fixture
def transducer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recognizer:
    monkeypatch.syspath_prepend(TENANTS)
    family = named("tdt_family.ParakeetTdtFamily")()
    monkeypatch.setitem(families.FAMILIES, family.name, family)
    named("tiny_tdt.write_tiny_tdt")(tmp_path)
    found: Recognizer = family.load_recognizer(named("parts.ParakeetTdtPart")(name_or_path=str(tmp_path)), None, seed=1)
    found.model.train()
    return found


def kept_bytes(recognizer: Recognizer, durations_s: Any, labels: Any, edge_s: float) -> int:
    """Bytes of what a forward pass keeps for the backward one, weights left out."""
    weights = {weight.data_ptr() for weight in recognizer.model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = tensor
        return tensor

    clips = [torch.from_numpy(speechlike(seconds)) for seconds in durations_s]
    given = recognizer.new_features().inputs(clips, edge_s)
    lengths = given.pop(LENGTHS, None)
    collated = recognizer.collate_labels([[5] * count for count in labels], [len(clip) for clip in clips])
    targets = collated.pop("labels")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        recognizer.loss(recognizer.model(**given, **collated), Target(targets, lengths), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def most_bytes(recognizer: Recognizer, *, with_cost: bool) -> int:
    """Of the batches of an epoch over clips of any length with any number of labels."""
    generator = np.random.default_rng(1)
    durations_s, labels = generator.uniform(0.5, CONTEXT_S, CLIPS), generator.integers(1, 60, CLIPS)
    plan = BatchPlan(
        Selection(np.arange(CLIPS), durations_s, np.zeros(CLIPS, np.int64)),
        BatchShape.resolve(workers=1, per_device=1, accumulation=1, max_batch_duration_s=MOST_S),
        edges_s=bucket_edges(CONTEXT_S, bucketed=True),
        seed=1,
        costs_of=(lambda edge_s, positions: recognizer.cost(edge_s, labels[positions])) if with_cost else None,
    )
    batches = plan.epoch(0)
    assert max(len(batch.rows) for batch in batches) > 1
    return max(
        kept_bytes(recognizer, durations_s[batch.rows], labels[batch.rows], batch.edge_s)
        for batch in batches
        if len(batch.rows) > 1
    )


def test_a_transducer_takes_no_more_memory_with_labels_than_its_padded_seconds_do_without(
    transducer: Recognizer,
) -> None:
    bound = kept_bytes(transducer, [MOST_S], [1], MOST_S)
    assert most_bytes(transducer, with_cost=True) < 1.1 * bound
    assert most_bytes(transducer, with_cost=False) > 1.5 * bound, "its seconds alone do not bound it"
