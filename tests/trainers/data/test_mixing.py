"""The shares of a mix and what its epochs draw, against numbers worked out by hand."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.data.batch_plan import BatchPlan, BatchShape, Selection, bucket_edges
from trainers.data.mixing import Mixture, apportion, group_shares, language_shares

SEED = 3


def mixture(
    sizes: Sequence[int],
    weights: Sequence[float] | None = None,
    *,
    languages: Sequence[str] | None = None,
    temperature: float | None = None,
) -> Mixture:
    """A mix of members of these sizes, each in one language."""
    members = np.repeat(np.arange(len(sizes)), sizes)
    names = [(languages or ["sr"] * len(sizes))[member] for member in members.tolist()]
    return Mixture(members, names, weights=weights, temperature=temperature, seed=SEED)


class TestShares:
    def test_of_languages_are_powers_of_their_sizes(self) -> None:
        # √900 : √100 = 3 : 1, and ⁵√100000 : ⁵√1 = 10 : 1.
        assert language_shares({"en": 900, "sr": 100}, 2.0) == pytest.approx({"en": 0.75, "sr": 0.25})
        assert language_shares({"en": 100_000, "sr": 1}, 5.0) == pytest.approx({"en": 10 / 11, "sr": 1 / 11})
        assert language_shares({"en": 900, "sr": 100}, 1.0) == pytest.approx({"en": 0.9, "sr": 0.1})

    def test_without_weights_and_temperature_are_those_of_the_sizes(self) -> None:
        assert group_shares({(0, "a"): 30, (1, "a"): 10}, None, None) == pytest.approx({(0, "a"): 0.75, (1, "a"): 0.25})

    def test_of_members_are_their_weights_which_their_languages_divide_by_size(self) -> None:
        counts = {(0, "en"): 30, (0, "sr"): 10, (1, "sr"): 1000}
        shares = group_shares(counts, [3.0, 1.0], None)
        assert shares == pytest.approx({(0, "en"): 0.5625, (0, "sr"): 0.1875, (1, "sr"): 0.25})

    def test_with_a_temperature_the_members_of_a_language_divide_its_share(self) -> None:
        # English has 900 and Serbian 100 utterances: 3 : 1. Serbian's are divided 1 : 4 by weight, or 1 : 3 by size.
        counts = {(0, "en"): 900, (1, "sr"): 25, (2, "sr"): 75}
        weighted = group_shares(counts, [7.0, 1.0, 4.0], 2.0)
        assert weighted == pytest.approx({(0, "en"): 0.75, (1, "sr"): 0.05, (2, "sr"): 0.2})
        by_size = group_shares(counts, None, 2.0)
        assert by_size == pytest.approx({(0, "en"): 0.75, (1, "sr"): 0.0625, (2, "sr"): 0.1875})

    def test_a_member_of_several_languages_is_several_groups(self) -> None:
        mixed = Mixture(np.array([0, 0, 0, 1]), ["sr", "en", "sr", "sr"], weights=None, temperature=None, seed=0)
        found = [(each.member, each.language, each.rows.tolist(), each.share) for each in mixed.groups]
        assert found == [(0, "en", [1], 0.25), (0, "sr", [0, 2], 0.5), (1, "sr", [3], 0.25)]


class TestDraws:
    @given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9), st.integers(0, 500))
    def test_add_up_and_leave_no_group_out(self, weights: list[float], more: int) -> None:
        total = len(weights) + more
        shares = [weight / sum(weights) for weight in weights]
        counts = apportion(shares, total)
        assert sum(counts) == total and min(counts) >= 1
        wanted = [share * total for share in shares]
        if min(wanted) >= 1:
            assert all(abs(count - want) < 1 + 1e-6 for count, want in zip(counts, wanted, strict=True))

    def test_of_a_mix_in_thirds(self) -> None:
        assert apportion([1 / 3, 1 / 3, 1 / 3], 10) == [4, 3, 3]
        assert apportion([0.999, 0.0005, 0.0005], 10) == [8, 1, 1]

    def test_hold_the_shares_in_every_epoch_exactly(self) -> None:
        mixed = mixture([60, 30, 10], [1, 1, 2])
        assert [each.draws for each in mixed.groups] == [25, 25, 50]
        for epoch in range(7):
            rows, _ = mixed.draws(epoch)
            found = Counter(np.searchsorted([60, 90], rows, side="right").tolist())
            assert found == {0: 25, 1: 25, 2: 50}

    def test_are_without_replacement_within_a_pass_and_go_on_where_the_epoch_before_has_ended(self) -> None:
        mixed = mixture([60, 30, 10], [1, 1, 2])
        counts, passes_of = np.zeros(100, np.int64), []
        for epoch in range(12):
            rows, passes = mixed.draws(epoch)
            for row, of_row in zip(rows.tolist(), passes.tolist(), strict=True):
                # The n-th time that it is drawn is in the n-th pass.
                assert of_row == counts[row]
                counts[row] += 1
            for start, end in pairwise([0, 60, 90, 100]):
                assert counts[start:end].max() - counts[start:end].min() <= 1
            passes_of.append(sorted(set(passes.tolist())))
        # 12 epochs of 25, 25 and 50 draws: 5, 10 and 60 passes.
        assert counts.tolist() == [5] * 60 + [10] * 30 + [60] * 10
        assert passes_of[0] == [0, 1, 2, 3, 4]

    def test_of_the_shares_that_sets_have_by_themselves_are_each_once(self) -> None:
        mixed = mixture([60, 33, 7], languages=["en", "sr", "sr"], temperature=1.0)
        for epoch in range(3):
            rows, passes = mixed.draws(epoch)
            assert rows.tolist() == list(range(100)) and set(passes.tolist()) == {epoch}

    def test_are_a_function_of_seed_and_epoch_and_of_another_order_in_each_pass(self) -> None:
        one, same = mixture([50, 50], [1, 4]), mixture([50, 50], [1, 4])
        assert same.draws(5)[0].tolist() == one.draws(5)[0].tolist()
        assert one.draws(0)[0].tolist() != one.draws(1)[0].tolist()


class TestPlan:
    """Batches of a mix of 300 and 100 clips with the weights 1 : 1."""

    DURATIONS_S = np.random.default_rng(1).uniform(0.2, 6, 400)
    MIXTURE = mixture([300, 100], [1, 1])

    def plan(self, shape: BatchShape, window_shards: int | None = None) -> BatchPlan:
        shards = np.sort(np.random.default_rng(2).integers(0, 12, 400))
        selection = Selection(np.arange(400) * 2, self.DURATIONS_S, shards, self.MIXTURE.draws)
        return BatchPlan(
            selection, shape, edges_s=bucket_edges(6, bucketed=True), seed=SEED, window_shards=window_shards
        )

    @pytest.mark.parametrize("window_shards", [None, 4])
    def test_epochs_hold_what_is_drawn_in_the_same_number_of_steps(self, window_shards: int | None) -> None:
        plan = self.plan(BatchShape(1, 1, 16), window_shards)
        for epoch in range(5):
            batches = plan.epoch(epoch)
            assert len(batches) == plan.steps_per_epoch == 25
            rows, passes = self.MIXTURE.draws(epoch)
            planned = sorted(
                pair for batch in batches for pair in zip(batch.rows.tolist(), batch.passes.tolist(), strict=True)
            )
            assert planned == list(zip((rows * 2).tolist(), passes.tolist(), strict=True))

    @pytest.mark.parametrize("shape", [BatchShape(1, 4, 16), BatchShape(2, 2, 16), BatchShape(4, 1, 16)])
    def test_any_number_of_workers_has_the_same_steps(self, shape: BatchShape) -> None:
        plan, alone = self.plan(shape), self.plan(BatchShape(1, 1, 16))
        for step in range(60):
            rows, passes = [], []
            for turn in range(shape.accumulation):
                for rank in range(shape.workers):
                    rows += list(plan.micro_batches(step, rank))[turn][0].tolist()
                    passes += list(plan.micro_batch_passes(step, rank))[turn].tolist()
            assert rows == alone.batch(step).rows.tolist()
            assert passes == alone.batch(step).passes.tolist()

    def test_with_dynamic_batching_epochs_of_several_lengths_follow_one_another(self) -> None:
        plan = self.plan(BatchShape(1, 1, None, 12.0))
        lengths = [len(plan.epoch(epoch)) for epoch in range(6)]
        assert len(set(lengths)) > 1
        batches = [batch.rows.tolist() for epoch in range(6) for batch in plan.epoch(epoch)]
        assert [plan.batch(step).rows.tolist() for step in range(len(batches))] == batches
        # From any step on, as a resumed run asks for it.
        last = len(batches) - 1
        assert self.plan(BatchShape(1, 1, None, 12.0)).batch(last).rows.tolist() == batches[last]

    def test_a_clip_that_is_drawn_again_has_the_duration_of_another_pass(self) -> None:
        selection = Selection(np.arange(4), np.ones(4), np.zeros(4, np.int64), mixture([3, 1], [1, 3]).draws)
        plan = BatchPlan(
            selection,
            BatchShape(1, 1, 4, to_longest=True),
            edges_s=(10.0,),
            seed=0,
            durations_of=lambda number, positions: np.full(len(positions), 1.0 + number),
        )
        (batch,) = plan.epoch(0)
        assert sorted(zip(batch.rows.tolist(), batch.passes.tolist(), strict=True))[1:] == [(3, 0), (3, 1), (3, 2)]
        assert batch.edge_s == 3.0
