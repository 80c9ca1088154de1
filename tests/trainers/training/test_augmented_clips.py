"""From the batch plan to the clips of each rank, augmented: the same whoever reads them, and as long as planned."""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainers.prepared import prepared_train
from tests.trainers.synthetic import config, speechlike, write_corpus, write_recording
from trainers.config.schema import TrainConfig
from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.augmentation import Masks
from trainers.data.batch_plan import BUCKET_EDGES_S
from trainers.data.prepared_set import JoinedMember, JoinedSet, PreparedSet
from trainers.models.families import family_of
from trainers.models.recognizer import Recognizer, Segment
from trainers.training.planning import plan_training
from trainers.training.trainer.planned_batches import Clips, Collator, PlannedBatches, PlannedLoader

CLIPS = 26
DURATIONS_S = [0.4 + 0.1 * number for number in range(CLIPS)]
GLOBAL_BATCH = 8
EPOCHS = 2
Heard = dict[tuple[int, bytes], tuple[float, Masks | None]]


@dataclass(frozen=True)
class Corpus:
    """A prepared set, and the folder of its model's description."""

    folder: Path
    prepared: PreparedSet
    noise: Path

    def config(self, **changes: Any) -> TrainConfig:
        """Everything on, and some fields changed."""
        return config(
            {
                "augment.speed_range": [0.7, 1.4],
                "augment.gain_db": [-6, 6],
                "augment.noise_manifest": str(self.noise),
                "augment.rir_manifest": str(self.noise),
                "augment.time_masks": 1,
                "training.global_batch_size": GLOBAL_BATCH,
                **{name.replace("__", "."): value for name, value in changes.items()},
            }
        )

    def recognizer(self, wanted: TrainConfig) -> Recognizer:
        return family_of(wanted.model).load_recognizer(wanted.model, self.folder / "description", 1)

    def plan(self, wanted: TrainConfig, workers: int = 1) -> Any:
        """Plan and clips."""
        return plan_training(wanted, self.prepared, self.recognizer(wanted), workers)

    def heard(self, workers: int, accumulation: int, loaders: int) -> list[Heard]:
        """What each global batch holds: step, samples and masks of each clip, over all ranks and forward passes."""
        wanted = self.config(training__gradient_accumulation_steps=accumulation, scaling__num_workers=workers)
        steps: list[Heard] = []
        for rank in range(workers):
            plan, clips = self.plan(wanted, workers)
            batches = PlannedBatches(plan, rank, clips.reader.prefetch, 0)
            loader = PlannedLoader(clips, batch_sampler=batches, collate_fn=list, num_workers=loaders)
            for epoch in range(EPOCHS):
                loader.set_epoch(epoch)
                for number, items in enumerate(loader):
                    step = epoch * plan.steps_per_epoch + number // plan.shape.accumulation
                    while len(steps) <= step:
                        steps.append({})
                    # A filler is a clip once more, without labels.
                    own = [item for item in items if set(item["labels"]) != {-100}]
                    for item in own:
                        steps[step][step, item["clip"].tobytes()] = (item["edge_s"], item["masks"])
        return steps


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("augmented")
    texts = [f"number {number}" for number in range(CLIPS)]
    manifest = write_corpus(folder, texts, durations_s=DURATIONS_S)
    prepared = prepared_train(manifest, str(folder / "prepared"))
    family_of(config().model).write_description(folder / "description", texts, config().model)
    write_recording(folder / "hum.wav", speechlike(0.7, seed=99))
    (folder / "noise.csv").write_text("path\nhum.wav\n")
    return Corpus(folder, prepared, folder / "noise.csv")


@pytest.fixture(scope="module")
def alone(corpus: Corpus) -> list[Heard]:
    """What one worker hears in one forward pass a step, without loader processes."""
    return corpus.heard(1, 1, 0)


def test_each_clip_is_heard_once_an_epoch_and_otherwise_in_the_next(alone: list[Heard]) -> None:
    steps = len(alone) // EPOCHS
    assert steps == -(-CLIPS // GLOBAL_BATCH)
    epochs = [{clip for heard in alone[start : start + steps] for _, clip in heard} for start in (0, steps)]
    assert [len(clips) for clips in epochs] == [CLIPS, CLIPS]
    assert not epochs[0] & epochs[1]


@pytest.mark.parametrize(("workers", "accumulation", "loaders"), [(1, 4, 0), (2, 1, 0), (3, 2, 0), (2, 2, 2)])
@pytest.mark.integration
def test_the_clips_of_a_step_do_not_depend_on_who_reads_them(
    corpus: Corpus, alone: list[Heard], workers: int, accumulation: int, loaders: int
) -> None:
    assert corpus.heard(workers, accumulation, loaders) == alone


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.integration
def test_batches_do_not_depend_on_how_the_processes_that_read_them_start(corpus: Corpus, method: str) -> None:
    members = [JoinedMember(name, None, corpus.prepared) for name in ("one", "other")]
    joined = replace(corpus, prepared=JoinedSet.of(members))
    wanted = corpus.config()
    plan, clips = joined.plan(wanted)

    def batches(clips: Clips, **how: Any) -> list[dict[str, Any]]:
        collate = Collator(corpus.recognizer(wanted).collate_labels)
        ahead = PlannedBatches(plan, 0, clips.reader.prefetch, 0)
        return [*PlannedLoader(clips, batch_sampler=ahead, collate_fn=collate, **how)]

    expected = batches(clips)
    found = batches(clips, num_workers=1, multiprocessing_context=method)
    assert len(found) == len(expected) == plan.steps_per_epoch
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in ("samples", "labels"))
        assert all(one[name] == other[name] for name in ("sizes", "edge_s", "masks", "shares"))


def test_a_resumed_rank_hears_what_it_would_have_heard(corpus: Corpus) -> None:
    plan, clips = corpus.plan(corpus.config())
    first = plan.steps_per_epoch + 1
    heard: list[list[bytes]] = []
    for begin in (0, first):
        batches = PlannedBatches(plan, 0, clips.reader.prefetch, begin)
        batches.set_epoch(1)
        later = itertools.islice(batches, 1, None)
        heard.append([clips[request]["clip"].tobytes() for requests in later for request in requests])
    assert heard[0] == heard[1]


@pytest.mark.parametrize("dynamic", [False, True])
def test_no_clip_is_longer_than_its_step_and_every_epoch_has_as_many_steps(corpus: Corpus, dynamic: bool) -> None:
    sizes = {"training__global_batch_size": None, "training__max_batch_duration_s": 8.0} if dynamic else {}
    plan, clips = corpus.plan(corpus.config(**sizes))
    tight = 0
    for epoch in range(6):
        assert len(plan.epoch(epoch)) == plan.steps_per_epoch
        batches = PlannedBatches(plan, 0, clips.reader.prefetch, 0)
        batches.set_epoch(epoch)
        for requests in batches:
            lengths_s = [len(clips[request]["clip"]) / SAMPLING_RATE_HZ for request in requests]
            edge_s = requests[0].edge_s
            assert max(lengths_s) <= edge_s <= 3.0
            tight += max(lengths_s) > max((edge for edge in BUCKET_EDGES_S if edge < edge_s), default=0)
    assert tight or dynamic


def test_switched_off_nothing_is_touched(corpus: Corpus) -> None:
    plan, clips = corpus.plan(config({"training.global_batch_size": GLOBAL_BATCH}))
    assert clips.augmenter is None
    for request in next(iter(PlannedBatches(plan, 0, clips.reader.prefetch, 0))):
        item = clips[request]
        assert item["masks"] is None
        assert np.array_equal(item["clip"], clips.reader.read(request.position))


def test_replaced_clips_have_an_empty_text_and_no_speech(corpus: Corpus) -> None:
    plan, clips = corpus.plan(corpus.config(augment__no_speech_fraction=0.4))
    _, usual = corpus.plan(corpus.config())
    empty = corpus.recognizer(corpus.config()).encode_labels([""])[0]
    requests = [request for batch in PlannedBatches(plan, 0, clips.reader.prefetch, 0) for request in batch]
    replaced = [request for request in requests if clips[request]["labels"] == empty]
    assert 3 < len(replaced) < 20
    for request in requests:
        own, other = clips[request], usual[request]
        assert len(own["clip"]) == len(other["clip"])
        is_same = np.array_equal(own["clip"], other["clip"])
        assert is_same == (own["labels"] == other["labels"]) == (request not in replaced)


@pytest.mark.parametrize("factor", [0.8, 1.1])
def test_times_in_labels_follow_the_speed_of_the_clip(corpus: Corpus, factor: float) -> None:
    wanted = corpus.config(augment__speed_range=None, augment__speed_factors=[factor])
    recognizer, index = corpus.recognizer(wanted), corpus.prepared.index
    ids, durations_s = index["id"].to_pylist(), index["duration_s"].to_pylist()
    timed = {
        id_: [Segment("one", 0.0, 0.2), Segment("two", 0.3, duration_s)]
        for id_, duration_s in zip(ids, durations_s, strict=True)
    }
    plan, clips = plan_training(wanted, corpus.prepared, recognizer, 1, timed)
    first = recognizer.processor.tokenizer.convert_tokens_to_ids("<|0.00|>")
    for request in next(iter(PlannedBatches(plan, 0, clips.reader.prefetch, 0))):
        item, label = clips[request], clips.labels[request.position]
        length_s = len(item["clip"]) / SAMPLING_RATE_HZ
        speed = durations_s[request.position] / length_s
        times = [(each - first) * 0.02 for each in item["labels"] if each >= first]
        assert times == pytest.approx([0, 0.2 / speed, 0.3 / speed, length_s], abs=0.02)
        assert times[-1] <= length_s + 1e-9
        assert [each for each in item["labels"] if each < first] == [each for each in label if each < first]
