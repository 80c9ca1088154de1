from collections import OrderedDict
from dataclasses import replace
from itertools import chain, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.settings import examples
from trainers.data.batch_plan import (
    BUCKET_EDGES_S,
    FINE_EDGES_S,
    BatchPlan,
    BatchShape,
    Selection,
    bucket_edges,
    bucket_of,
)
from trainers.models.ctc.ctc_family import CONTEXT_S

EDGES_S = bucket_edges(30.0, bucketed=True)


# Seven clips in three shards, two a step, seed 42: rows and edge of each step of two epochs.
GOLDEN = [
    [([15, 9], 1.0), ([0, 6], 0.5), ([18, 3], 3.0), ([12], 3.0)],
    [([12], 3.0), ([18, 3], 3.0), ([15, 9], 1.0), ([0, 6], 0.5)],
]
# Of forty clips, sixteen a step, seed 3: a quarter of each of six steps.
SAMPLES = [[63, 78, 15, 21], [57, 66], [108, 27, 90, 36], [108, 69], [117, 27, 36, 24], [99, 0, 72, 12]]


def selection_of(durations_s: Any, rows_per_shard: int = 8) -> Selection:
    """All of these clips, at every third position of an index."""
    count = len(durations_s)
    return Selection(np.arange(count) * 3, np.asarray(durations_s, dtype=float), np.arange(count) // rows_per_shard)


def durations_of(selection: Selection) -> dict[int, float]:
    return dict(zip(selection.rows.tolist(), selection.durations_s.tolist(), strict=True))


def order_of(plan: BatchPlan, epoch: int = 0) -> list[tuple[list[int], float]]:
    return [(batch.rows.tolist(), batch.edge_s) for batch in plan.epoch(epoch)]


selections = st.builds(
    selection_of,
    st.lists(st.one_of(st.floats(0.01, 30.0), st.sampled_from(EDGES_S)), min_size=1, max_size=150),
    st.integers(1, 20),
)
fixed_shapes = st.builds(
    BatchShape.resolve,
    workers=st.integers(1, 4),
    per_device=st.integers(1, 8),
    accumulation=st.integers(1, 3),
    global_batch_size=st.one_of(st.none(), st.integers(12, 40)),
)
dynamic_shapes = st.builds(
    BatchShape.resolve,
    workers=st.integers(1, 4),
    per_device=st.just(1),
    accumulation=st.integers(1, 3),
    max_batch_duration_s=st.floats(1.0, 200.0),
)
shapes = st.builds(replace, st.one_of(fixed_shapes, dynamic_shapes), to_longest=st.booleans())
bucketed_shapes = st.one_of(fixed_shapes, dynamic_shapes)
plans = st.builds(
    BatchPlan,
    selections,
    shapes,
    edges_s=st.sampled_from([EDGES_S, (30.0,)]),
    seed=st.integers(0, 2**32),
    window_shards=st.one_of(st.none(), st.integers(1, 5)),
    full_context_fraction=st.sampled_from([0.0, 0.3, 1.0]),
)


class TestAnyPlan:
    @settings(deadline=None)
    @given(selections, shapes, st.integers(0, 99), st.one_of(st.none(), st.integers(1, 4)), st.floats(0, 1))
    def test_an_epoch_holds_each_utterance_once_in_the_same_number_of_steps(
        self, selection: Selection, shape: BatchShape, seed: int, window: int | None, fraction: float
    ) -> None:
        plan = BatchPlan(
            selection, shape, edges_s=EDGES_S, seed=seed, window_shards=window, full_context_fraction=fraction
        )
        for epoch in range(3):
            batches = plan.epoch(epoch)
            assert len(batches) == plan.steps_per_epoch
            assert sorted(np.concatenate([batch.rows for batch in batches]).tolist()) == selection.rows.tolist()

    @settings(deadline=None)
    @given(selections, shapes, st.integers(0, 99), st.floats(0, 1))
    def test_no_utterance_is_longer_than_the_edge_of_its_step(
        self, selection: Selection, shape: BatchShape, seed: int, fraction: float
    ) -> None:
        durations_s = durations_of(selection)
        plan = BatchPlan(selection, shape, edges_s=EDGES_S, seed=seed, full_context_fraction=fraction)
        for batch in plan.epoch(0):
            assert shape.to_longest or batch.edge_s in EDGES_S
            assert max(durations_s[row] for row in batch.rows.tolist()) <= batch.edge_s

    @settings(deadline=None)
    @given(selections, bucketed_shapes, st.integers(0, 99))
    def test_a_batch_that_is_padded_to_its_longest_is_the_same_but_for_its_length(
        self, selection: Selection, shape: BatchShape, seed: int
    ) -> None:
        durations_s = durations_of(selection)
        bucketed, longest = (
            BatchPlan(selection, each, edges_s=EDGES_S, seed=seed) for each in (shape, replace(shape, to_longest=True))
        )
        for batch, shorter in zip(bucketed.epoch(0), longest.epoch(0), strict=True):
            assert batch.rows.tolist() == shorter.rows.tolist()
            assert shorter.edge_s == max(durations_s[row] for row in batch.rows.tolist()) <= batch.edge_s

    @settings(deadline=None)
    @given(plans)
    def test_shares_of_ranks_and_turns_are_a_partition_that_differs_by_one_at_most(self, plan: BatchPlan) -> None:
        shape = plan.shape
        for step in range(plan.steps_per_epoch):
            batch = plan.batch(step)
            shares = [share for rank in range(shape.workers) for share in plan.micro_batches(step, rank)]
            assert len(shares) == shape.workers * shape.accumulation
            assert {edge_s for _, edge_s in shares} == {batch.edge_s}
            sizes = [len(rows) for rows, _ in shares]
            assert max(sizes) - min(sizes) <= 1
            assert sorted(np.concatenate([rows for rows, _ in shares]).tolist()) == sorted(batch.rows.tolist())

    @settings(deadline=None)
    @given(plans, st.randoms(use_true_random=False))
    def test_any_step_is_reached_without_those_before_it(self, plan: BatchPlan, random: Any) -> None:
        expected = [item for epoch in range(3) for item in order_of(plan, epoch)]
        steps = list(range(len(expected)))
        random.shuffle(steps)
        for step in steps:
            batch = plan.batch(step)
            assert (batch.rows.tolist(), batch.edge_s) == expected[step]

    @settings(deadline=None)
    @given(selections, bucketed_shapes, st.integers(0, 99), st.one_of(st.none(), st.integers(1, 4)))
    def test_only_what_is_left_over_at_the_end_is_a_smaller_batch(
        self, selection: Selection, shape: BatchShape, seed: int, window: int | None
    ) -> None:
        batches = BatchPlan(selection, shape, edges_s=EDGES_S, seed=seed, window_shards=window).epoch(0)
        smaller = [batch for batch in batches if len(batch.rows) < shape.capacity(batch.edge_s)]
        # In seconds a longer bucket's batch is full with fewer clips.
        sizes = set(shape.capacity(EDGES_S).tolist())
        assert sum(len(batch.rows) not in sizes for batch in smaller) <= 1
        assert shape.max_batch_duration_s is not None or len(smaller) <= 1
        assert all(len(batch.rows) <= shape.capacity(batch.edge_s) for batch in batches)

    @settings(deadline=None)
    @given(selections, bucketed_shapes, st.integers(0, 99))
    def test_a_batch_is_padded_to_the_bucket_of_its_longest_clip(
        self, selection: Selection, shape: BatchShape, seed: int
    ) -> None:
        durations_s = durations_of(selection)
        for batch in BatchPlan(selection, shape, edges_s=EDGES_S, seed=seed).epoch(0):
            longest_s = max(durations_s[row] for row in batch.rows.tolist())
            assert batch.edge_s == EDGES_S[int(bucket_of([longest_s], EDGES_S)[0])]

    @settings(deadline=None)
    @given(selections, dynamic_shapes, st.integers(0, 99), st.floats(0, 1))
    def test_dynamic_batching_bounds_the_padded_seconds_of_a_forward_pass(
        self, selection: Selection, shape: BatchShape, seed: int, fraction: float
    ) -> None:
        assert shape.max_batch_duration_s is not None
        plan = BatchPlan(selection, shape, edges_s=EDGES_S, seed=seed, full_context_fraction=fraction)
        for step in range(plan.steps_per_epoch):
            for rank in range(shape.workers):
                for rows, edge_s in plan.micro_batches(step, rank):
                    # One clip alone may be longer than the bound, and has to be heard too.
                    assert len(rows) <= 1 or len(rows) * edge_s <= shape.max_batch_duration_s + 1e-6

    @settings(deadline=None)
    @given(selections, dynamic_shapes, st.integers(0, 99))
    def test_dynamic_batching_bounds_the_costs_of_a_forward_pass(
        self, selection: Selection, shape: BatchShape, seed: int
    ) -> None:
        assert shape.max_batch_duration_s is not None
        costs = np.random.default_rng(seed).integers(1, 40, len(selection.rows)).astype(np.float64)
        cost_of_row = dict(zip(selection.rows.tolist(), costs.tolist(), strict=True))
        plan = BatchPlan(
            selection, shape, edges_s=EDGES_S, seed=seed, costs_of=lambda edge_s, positions: edge_s * costs[positions]
        )
        # Their epochs may differ in how many steps they have.
        batches = [batch.rows.tolist() for epoch in range(3) for batch in plan.epoch(epoch)]
        assert sorted(chain.from_iterable(batches)) == sorted(3 * selection.rows.tolist())
        assert [plan.batch(step).rows.tolist() for step in range(len(batches))] == batches
        for step, rank in product(range(len(batches)), range(shape.workers)):
            for rows, edge_s in plan.micro_batches(step, rank):
                cost_s = edge_s * max((cost_of_row[row] for row in rows.tolist()), default=0)
                assert len(rows) <= 1 or len(rows) * cost_s <= shape.max_batch_duration_s + 1e-6

    @settings(deadline=None)
    @given(selections, st.integers(12, 40), st.integers(0, 99))
    def test_with_a_global_batch_size_the_utterances_of_a_step_do_not_depend_on_the_workers(
        self, selection: Selection, size: int, seed: int
    ) -> None:
        orders = [
            order_of(
                BatchPlan(
                    selection,
                    BatchShape.resolve(workers=workers, per_device=4, accumulation=turns, global_batch_size=size),
                    edges_s=EDGES_S,
                    seed=seed,
                )
            )
            for workers, turns in ((1, 1), (2, 1), (3, 1), (4, 3))
        ]
        assert all(order == orders[0] for order in orders)

    @settings(deadline=None)
    @given(selections, shapes, st.integers(0, 2**32))
    def test_the_same_seed_gives_the_same_order(self, selection: Selection, shape: BatchShape, seed: int) -> None:
        first, second = (BatchPlan(selection, shape, edges_s=EDGES_S, seed=seed) for _ in range(2))
        assert order_of(first, 2) == order_of(second, 2)

    @settings(deadline=None)
    @given(selections, fixed_shapes, st.integers(0, 99))
    def test_widening_moves_no_utterance(self, selection: Selection, shape: BatchShape, seed: int) -> None:
        narrow, half, wide = (
            BatchPlan(selection, shape, edges_s=EDGES_S, seed=seed, full_context_fraction=fraction).epoch(1)
            for fraction in (0.0, 0.5, 1.0)
        )
        for one, some, every in zip(narrow, half, wide, strict=True):
            assert one.rows.tolist() == some.rows.tolist() == every.rows.tolist()
            assert some.edge_s in (one.edge_s, 30.0)
            assert every.edge_s == 30.0


class TestChangingDurations:
    """Where speed is perturbed, an utterance has another duration in each epoch."""

    @settings(deadline=None)
    @given(selections, fixed_shapes, st.integers(0, 99), st.one_of(st.none(), st.integers(1, 4)))
    def test_every_epoch_has_the_same_number_of_steps_and_each_utterance_once(
        self, selection: Selection, shape: BatchShape, seed: int, window: int | None
    ) -> None:
        durations_s = [
            np.minimum(selection.durations_s / np.random.default_rng(epoch).uniform(0.5, 2, len(selection.rows)), 30)
            for epoch in range(4)
        ]
        plan = BatchPlan(
            selection,
            shape,
            edges_s=EDGES_S,
            seed=seed,
            window_shards=window,
            durations_of=lambda epoch, positions: durations_s[epoch][positions],
        )
        for epoch in range(4):
            longest_s = dict(zip(selection.rows.tolist(), durations_s[epoch].tolist(), strict=True))
            batches = plan.epoch(epoch)
            assert len(batches) == plan.steps_per_epoch
            assert sorted(np.concatenate([batch.rows for batch in batches]).tolist()) == selection.rows.tolist()
            for batch in batches:
                assert max(longest_s[row] for row in batch.rows.tolist()) <= batch.edge_s

    def test_an_utterance_is_in_the_bucket_of_its_epoch(self) -> None:
        selection = selection_of([0.9, 0.9, 5.5, 5.5])
        durations_s = [np.array([0.9, 0.9, 5.5, 5.5]), np.array([1.2, 1.2, 4.8, 4.8])]
        shape = BatchShape.resolve(workers=1, per_device=2, accumulation=1)
        plan = BatchPlan(
            selection,
            shape,
            edges_s=EDGES_S,
            seed=1,
            durations_of=lambda epoch, positions: durations_s[epoch][positions],
        )
        assert [sorted(batch.edge_s for batch in plan.epoch(epoch)) for epoch in range(2)] == [[1.0, 6.0], [1.26, 5.0]]


class TestShape:
    @settings(deadline=None)
    @given(st.integers(1, 8), st.integers(1, 16), st.integers(1, 4), st.integers(1, 200))
    def test_no_forward_pass_holds_more_than_a_device_may(
        self, workers: int, per_device: int, accumulation: int, size: int
    ) -> None:
        shape = BatchShape.resolve(
            workers=workers, per_device=per_device, accumulation=accumulation, global_batch_size=size
        )
        assert shape.global_batch_size == size
        assert -(-size // shape.slots) <= per_device
        assert shape.accumulation >= accumulation

    def test_without_a_global_size_it_is_the_product(self) -> None:
        assert BatchShape.resolve(workers=3, per_device=5, accumulation=2).global_batch_size == 30

    def test_dynamic_capacity_is_whole_clips_for_each_slot(self) -> None:
        shape = BatchShape.resolve(workers=2, per_device=1, accumulation=3, max_batch_duration_s=10.0)
        assert shape.capacity((0.5, 3.0, 10.0, 30.0)).tolist() == [120, 18, 6, 6]


class TestBuckets:
    def test_edges_end_with_the_context(self) -> None:
        assert bucket_edges(3, bucketed=True) == (0.5, 0.76, 1.0, 1.26, 1.5, 2.0, 2.5, 3.0)
        assert bucket_edges(7, bucketed=True)[-2:] == (6.0, 7.0)
        assert bucket_edges(30, bucketed=False) == (30.0,)

    def test_fine_edges_ascend_beyond_the_longest_context(self) -> None:
        assert list(FINE_EDGES_S) == sorted(set(FINE_EDGES_S))
        assert FINE_EDGES_S[-1] > CONTEXT_S

    def test_a_duration_on_an_edge_belongs_below_it(self) -> None:
        assert bucket_of([0.01, 0.5, 0.500001, 30.0], EDGES_S).tolist() == [0, 0, 1, len(EDGES_S) - 1]

    def test_every_edge_is_a_whole_number_of_encoder_outputs(self) -> None:
        assert all(abs(edge_s / 0.02 - round(edge_s / 0.02)) < 1e-9 for edge_s in BUCKET_EDGES_S)


class TestOrder:
    SELECTION = selection_of(np.random.default_rng(1).uniform(0.3, 12, 400), rows_per_shard=10)
    SHAPE = BatchShape.resolve(workers=2, per_device=4, accumulation=1)

    def plan(self, **options: Any) -> BatchPlan:
        return BatchPlan(self.SELECTION, self.SHAPE, **{"edges_s": EDGES_S, "seed": 1, **options})

    def test_epochs_differ(self) -> None:
        plan = self.plan()
        assert order_of(plan, 0) != order_of(plan, 1)

    def test_seeds_differ(self) -> None:
        assert order_of(self.plan(seed=1)) != order_of(self.plan(seed=2))

    def test_lengths_come_mixed(self) -> None:
        edges = [batch.edge_s for batch in self.plan().epoch(0)]
        assert edges != sorted(edges)
        assert len(set(edges[:10])) > 3

    def test_fine_buckets_padded_to_the_longest_clip_leave_little_padding(self) -> None:
        edges_s, shape = bucket_edges(30.0, bucketed=True, fine=True), replace(self.SHAPE, to_longest=True)
        fine = BatchPlan(self.SELECTION, shape, edges_s=edges_s, seed=1)
        padded, coarse = (
            sum(len(batch.rows) * batch.edge_s for batch in plan.epoch(0)) / self.SELECTION.durations_s.sum() - 1
            for plan in (fine, self.plan())
        )
        assert padded < 0.04
        assert coarse > 2 * padded

    @pytest.mark.parametrize(("fraction", "least", "most"), [(0.0, 0, 0), (0.25, 0.2, 0.3), (1.0, 1, 1)])
    def test_the_asked_fraction_of_batches_is_widened(self, fraction: float, least: float, most: float) -> None:
        plan = self.plan(full_context_fraction=fraction)
        edges = [batch.edge_s for epoch in range(10) for batch in plan.epoch(epoch)]
        assert least <= sum(edge_s == 30.0 for edge_s in edges) / len(edges) <= most

    @pytest.mark.parametrize("fraction", [0.01, 0.3, 1.0])
    def test_the_asked_fraction_of_each_step_is_sampled(self, fraction: float) -> None:
        plan = self.plan()
        for step in range(2 * plan.steps_per_epoch):
            rows, sample = plan.batch(step).rows.tolist(), plan.sampled(step, fraction).tolist()
            assert len(set(sample)) == len(sample) == max(1, round(fraction * len(rows)))
            assert set(sample) <= set(rows)
        assert not len(plan.sampled(0, 0.0))

    def test_which_are_sampled_depends_on_the_step_alone(self) -> None:
        one, other = (
            BatchPlan(
                selection_of([1.0] * 40),
                BatchShape.resolve(workers=workers, per_device=8, accumulation=accumulation, global_batch_size=16),
                edges_s=EDGES_S,
                seed=3,
            )
            for workers, accumulation in ((1, 2), (3, 1))
        )
        samples = [[plan.sampled(step, 0.25).tolist() for step in range(6)] for plan in (one, other)]
        assert samples[0] == samples[1] == SAMPLES

    def test_a_tiny_plan_is_this_one(self) -> None:
        selection = selection_of([0.4, 2.9, 0.45, 0.9, 2.6, 0.3, 1.0], rows_per_shard=3)
        shape = BatchShape.resolve(workers=2, per_device=1, accumulation=1)
        plan = BatchPlan(selection, shape, edges_s=bucket_edges(3, bucketed=True), seed=42)
        assert [order_of(plan, epoch) for epoch in (0, 1)] == GOLDEN


class TestWindow:
    ROWS_PER_SHARD = 100
    SHARDS = 40

    def fetches(self, window: int | None, edges_s: tuple[float, ...], held: int) -> int:
        """How often a shard is read in one epoch by a reader that holds the `held` last used."""
        durations_s = np.random.default_rng(0).lognormal(1.2, 0.5, self.SHARDS * self.ROWS_PER_SHARD).clip(0.2, 30)
        selection = selection_of(durations_s, self.ROWS_PER_SHARD)
        shape = BatchShape.resolve(workers=1, per_device=32, accumulation=1)
        plan = BatchPlan(selection, shape, edges_s=edges_s, seed=3, window_shards=window)
        cache: OrderedDict[int, None] = OrderedDict()
        fetched = 0
        for batch in plan.epoch(0):
            for shard in np.unique(batch.rows // 3 // self.ROWS_PER_SHARD).tolist():
                fetched += shard not in cache
                cache[shard] = None
                cache.move_to_end(shard)
                if len(cache) > held:
                    cache.popitem(last=False)
        return fetched

    def test_with_one_length_each_shard_is_read_once(self) -> None:
        assert self.fetches(4, (30.0,), held=8) == self.SHARDS
        assert self.fetches(None, (30.0,), held=8) > 10 * self.SHARDS

    def test_with_buckets_few_shards_are_read_again(self) -> None:
        # Rare lengths wait for company over many windows; their shards are read again.
        assert self.fetches(4, EDGES_S, held=12) < 5 * self.SHARDS
        assert self.fetches(None, EDGES_S, held=12) > 50 * self.SHARDS

    @settings(max_examples=examples(30), deadline=None)
    @given(st.integers(1, 6), st.integers(0, 99))
    def test_a_batch_of_one_length_touches_two_windows_at_most(self, window: int, seed: int) -> None:
        selection = selection_of(np.full(300, 2.0), rows_per_shard=10)
        shape = BatchShape.resolve(workers=1, per_device=7, accumulation=1)
        plan = BatchPlan(selection, shape, edges_s=(30.0,), seed=seed, window_shards=window)
        for batch in plan.epoch(0):
            assert len(np.unique(batch.rows // 3 // 10)) <= 2 * window

    def test_shards_come_in_another_order_each_epoch(self) -> None:
        plan = BatchPlan(
            selection_of(np.full(300, 2.0), rows_per_shard=10),
            BatchShape.resolve(workers=1, per_device=10, accumulation=1),
            edges_s=(30.0,),
            seed=0,
            window_shards=1,
        )
        firsts = [[int(batch.rows[0]) // 30 for batch in plan.epoch(epoch)] for epoch in (0, 1)]
        assert sorted(firsts[0]) == sorted(firsts[1]) == list(range(30))
        assert firsts[0] != firsts[1] != list(range(30))
