"""Plans batches: the utterances of each step, and their distribution over workers. Pure arithmetic on the index.

An epoch's order is a function of (index, seed, epoch, batch shape, bucket edges, shuffle window) only. Utterances are
shuffled within windows of shards and put into length buckets in that order; a full bucket is a global batch. Utterances
left in a bucket at the end move to the next longer one, so that an epoch has each utterance once and only one smaller
batch. Every epoch has the same number of steps.

With speed perturbation, an utterance has a different duration in each epoch. With a fixed number of utterances per
step, it goes into the bucket of that duration; since leftovers move up, there are always ⌈utterances / batch⌉ steps.
With dynamic batching the number of steps depends on the buckets, so an utterance goes into the bucket of its longest
possible duration.

With a mix (`mixing`), an epoch has the utterances that it draws, some more than once and some not at all. With dynamic
batching its epochs then have different numbers of steps, but the step counter's epochs all have the length of the
first, `steps_per_epoch`.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trainers.config.storage_location import is_url

# Constants, not quantiles of a set, so that a clip is padded equally in every experiment. Steps of about a quarter keep
# the padding of a uniformly distributed length below 15 %. All are multiples of 20 ms, one output of Whisper's encoder.
# fmt: off
BUCKET_EDGES_S = (
    0.5, 0.76, 1.0, 1.26, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0,
    75.0, 90.0, 105.0, 120.0,
)
# fmt: on

# These have 16,000 utterances: enough to shuffle well, and few enough for a node's copy of shards to have them twice.
WINDOW_SHARDS_IN_BUCKETS = 64

# For batches that are padded only to their longest clip: steps of 4 % leave 2 % of padding, and a set of a thousand
# clips of read speech still has about ten per bucket.
FINE_EDGES_S = tuple(round(0.5 * 1.04**number, 2) for number in range(141))

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def default_window_shards(url: str) -> int | None:
    """Returns the shuffle window of a new run on the prepared set at a URL, see BatchPlan.

    In a bucket, shuffling the complete set would download nearly one shard per utterance.
    """
    return WINDOW_SHARDS_IN_BUCKETS if is_url(url) else None


def bucket_edges(context_s: float, *, bucketed: bool, fine: bool = False) -> tuple[float, ...]:
    """Returns ascending edges in seconds, of which the last is the full context; only this edge unless `bucketed`.

    `fine` edges are for batches that are padded to their longest clip, see `BatchPlan`.
    """
    edges_s = FINE_EDGES_S if fine else BUCKET_EDGES_S
    shorter = tuple(edge for edge in edges_s if edge < context_s) if bucketed else ()
    return (*shorter, float(context_s))


def bucket_of(durations_s: npt.ArrayLike, edges_s: Sequence[float]) -> IntArray:
    """Returns the index of the first edge that is not shorter than each duration.

    Args:
        durations_s: Durations in seconds, shape (N,); none longer than the last edge.
        edges_s: Ascending edges in seconds.
    """
    return np.searchsorted(np.asarray(edges_s), np.asarray(durations_s, dtype=np.float64), side="left")


@dataclass(frozen=True)
class BatchShape:
    """The utterances of one optimizer step, and the forward passes over which they are distributed.

    Attributes:
        workers: Number of ranks.
        accumulation: Forward passes of each rank per optimizer step.
        global_batch_size: Utterances of a step over all ranks; None with dynamic batching.
        max_batch_duration_s: Maximum cost of the utterances of one forward pass of one rank, see `BatchPlan.costs_of`;
            None with a fixed number.
        to_longest: True if a batch is padded to its longest clip, not to the edge of its bucket.
    """

    workers: int
    accumulation: int
    global_batch_size: int | None
    max_batch_duration_s: float | None = None
    to_longest: bool = False

    @classmethod
    def resolve(
        cls,
        *,
        workers: int,
        per_device: int,
        accumulation: int,
        global_batch_size: int | None = None,
        max_batch_duration_s: float | None = None,
    ) -> "BatchShape":
        """Returns the shape for the values of a config, with defaults in place of None.

        With `global_batch_size`, there are as many forward passes as keep each to at most `per_device` utterances.
        Without it, the global batch is per_device × workers × accumulation.
        """
        if max_batch_duration_s is not None:
            return cls(workers, accumulation, None, max_batch_duration_s)
        if global_batch_size is None:
            return cls(workers, accumulation, per_device * workers * accumulation)
        needed = -(-global_batch_size // (workers * per_device))
        return cls(workers, max(accumulation, needed), global_batch_size)

    @property
    def slots(self) -> int:
        """Number of forward passes of all ranks in one optimizer step."""
        return self.workers * self.accumulation

    def capacity(self, costs_s: npt.ArrayLike) -> IntArray:
        """Returns the number of utterances of a step, given the cost of its costliest; in the shape of `costs_s`."""
        costs = np.asarray(costs_s, dtype=np.float64)
        if self.max_batch_duration_s is None:
            assert self.global_batch_size is not None
            return np.full(costs.shape, self.global_batch_size)
        return np.maximum(1, (self.max_batch_duration_s / costs + 1e-9).astype(np.int64)) * self.slots


@dataclass(frozen=True)
class GlobalBatch:
    """The utterances of one optimizer step.

    Attributes:
        rows: Positions in the index, shape (n,), in the order in which they are distributed.
        edge_s: Length in seconds to which each is padded.
        passes: Number (from 0) of the pass over its set in which each utterance was drawn, shape (n,); the epoch,
            unless sets are mixed.
    """

    rows: IntArray
    edge_s: float
    passes: IntArray


@dataclass(frozen=True)
class Selection:
    """The part of a prepared index that a plan covers.

    Attributes:
        rows: Positions in the index, shape (N,), ascending.
        durations_s: Their durations in seconds, shape (N,).
        shards: The shard of each row, shape (N,), ascending.
        draws_of: Returns the draws of an epoch, see `Mixture.draws`; None if each row is drawn once.
    """

    rows: IntArray
    durations_s: npt.NDArray[np.float64]
    shards: IntArray
    draws_of: Callable[[int], tuple[IntArray, IntArray]] | None = None


class BatchPlan:
    """The order of one training set: `batch(step)` for any step, without computing those before it.

    Args:
        selection: The rows to plan; at least one.
        shape: Batch shape.
        edges_s: Bucket edges, see `bucket_edges`.
        seed: Seed of the order.
        window_shards: Shuffle within this many shards at a time; None for the complete set.
        full_context_fraction: Fraction of batches padded to the last edge instead of their own.
        durations_of: Returns durations, seconds, of utterances at some positions in the selection, in a pass over
            it; with dynamic batching they must be the same in each pass. None for those of the selection.
        costs_of: Returns the costs, in units of `max_batch_duration_s`, of utterances at some positions in the
            selection when padded to an edge, shape (n,); higher for a longer edge. Each utterance of a batch costs as
            much as its costliest. None if the cost is the edge.

    Attributes:
        steps_per_epoch: Optimizer steps of every epoch; see the module's docstring for the exception.
    """

    def __init__(
        self,
        selection: Selection,
        shape: BatchShape,
        *,
        edges_s: Sequence[float],
        seed: int,
        window_shards: int | None = None,
        full_context_fraction: float = 0.0,
        durations_of: Callable[[int, IntArray], FloatArray] | None = None,
        costs_of: Callable[[float, IntArray], FloatArray] | None = None,
    ):
        self.shape = shape
        self.edges_s = tuple(edges_s)
        self._selection = selection
        self._durations_of = durations_of or (lambda number, positions: selection.durations_s[positions])
        self._costs_of = costs_of or (lambda edge_s, positions: np.full(len(positions), edge_s))
        self._draws_of = selection.draws_of or self._each_once
        self._seed = seed
        self.window_shards = window_shards
        self._full_context_fraction = full_context_fraction
        self._epoch = lru_cache(maxsize=2)(self._plan_epoch)
        self.steps_per_epoch = len(self._epoch(0))
        # The step at which each epoch ends; empty if all have the same length.
        costs = self._costs_of(self.edges_s[-1], np.arange(len(selection.rows)))
        varies = shape.max_batch_duration_s is not None and (selection.draws_of is not None or np.ptp(costs) > 0)
        self._ends = [self.steps_per_epoch] if varies else []

    def batch(self, step: int) -> GlobalBatch:
        """Returns the global batch of optimizer step `step`, counted from 0 over all epochs."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._ends:
            while self._ends[-1] <= step:
                self._ends.append(self._ends[-1] + len(self._epoch(len(self._ends))))
            epoch = bisect_right(self._ends, step)
            position = step - self._ends[epoch - 1] if epoch else step
        return self._epoch(epoch)[position]

    def epoch(self, epoch: int) -> list[GlobalBatch]:
        return list(self._epoch(epoch))

    def sampled(self, step: int, fraction: float) -> IntArray:
        """Returns a sample of the rows of a step's batch: a fraction of them, at least one if `fraction` is above 0.

        They are drawn from the rows in ascending order, so that they do not depend on how the batch is distributed.
        """
        rows = np.unique(self.batch(step).rows)
        if not fraction:
            return rows[:0]
        # This seed has more words than those of other draws, so its sequence differs from theirs.
        generator = np.random.default_rng([self._seed, step, 0, 0, 1])
        return generator.choice(rows, max(1, round(fraction * len(rows))), replace=False)

    def micro_batches(self, step: int, rank: int) -> list[tuple[IntArray, float]]:
        """Returns rows and edge in seconds of each forward pass of one rank in one step."""
        batch = self.batch(step)
        return [(rows, batch.edge_s) for rows in self._of_rank(batch.rows, rank)]

    def micro_batch_passes(self, step: int, rank: int) -> list[IntArray]:
        """Returns `GlobalBatch.passes` for the rows of each of `micro_batches`."""
        return self._of_rank(self.batch(step).passes, rank)

    def _of_rank(self, of_batch: IntArray, rank: int) -> list[IntArray]:
        """Splits an array over forward passes: sizes differ by at most one, and some are 0 if the batch is small."""
        return np.array_split(of_batch, self.shape.slots)[rank :: self.shape.workers]

    def _each_once(self, epoch: int) -> tuple[IntArray, IntArray]:
        count = len(self._selection.rows)
        return np.arange(count), np.full(count, epoch)

    def _plan_epoch(self, epoch: int) -> tuple[GlobalBatch, ...]:
        generator = np.random.default_rng([self._seed, epoch])
        positions, passes = self._draws_of(epoch)
        order = self._shuffled(generator, self._selection.shards[positions])
        batches = self._fill_buckets(positions[order], passes[order])
        if self.window_shards is None:
            batches = [batches[i] for i in generator.permutation(len(batches))]
        # Dynamic batching bounds padded seconds; widening a batch would exceed the bound.
        fraction = self._full_context_fraction if self.shape.max_batch_duration_s is None else 0.0
        wide = generator.random(len(batches)) < fraction
        return tuple(
            GlobalBatch(batch.rows, self.edges_s[-1], batch.passes) if is_wide else batch
            for batch, is_wide in zip(batches, wide, strict=True)
        )

    def _shuffled(self, generator: np.random.Generator, shards_of_draws: IntArray) -> IntArray:
        """Returns the order of this epoch's draws, given their shards."""
        shards = np.unique(self._selection.shards)
        generator.shuffle(shards)
        window = self.window_shards or len(shards)
        rank_of_shard = np.empty(int(shards.max()) + 1, dtype=np.int64)
        rank_of_shard[shards] = np.arange(len(shards)) // window
        return np.lexsort((generator.random(len(shards_of_draws)), rank_of_shard[shards_of_draws]))

    def _fill_buckets(self, positions: IntArray, passes: IntArray) -> list[GlobalBatch]:
        """Splits draws, in their order, into batches of one bucket each, in the order in which these become full."""
        durations_s = np.empty(len(positions))
        by_pass = np.argsort(passes, kind="stable")
        numbers, starts = np.unique(passes[by_pass], return_index=True)
        for number, draws in zip(numbers, np.split(by_pass, starts[1:]), strict=True):
            durations_s[draws] = self._durations_of(int(number), positions[draws])
        buckets = bucket_of(durations_s, self.edges_s)

        def batch(members: IntArray) -> GlobalBatch:
            if self.shape.to_longest:
                length_s = float(durations_s[members].max())
            else:
                # It may be less than the bucket's edge, since leftovers of shorter buckets may fill its batch.
                length_s = self.edges_s[int(buckets[members].max())]
            return GlobalBatch(self._selection.rows[positions[members]], length_s, passes[members])

        full: list[tuple[int, GlobalBatch]] = []
        left = np.empty(0, dtype=np.int64)
        for bucket, edge_s in enumerate(self.edges_s):
            members = np.concatenate([left, np.flatnonzero(buckets == bucket)])
            costs_s = self._costs_of(edge_s, positions[members])
            start = 0
            while size := self._full_size(costs_s[start:]):
                chunk = members[start : start + size]
                full.append((int(chunk.max()), batch(chunk)))
                start += size
            left = members[start:]
        full.sort(key=lambda item: item[0])
        batches = [each for _, each in full]
        if len(left):
            batches.append(batch(left))
        return batches

    def _full_size(self, costs_s: FloatArray) -> int:
        """Returns how many utterances of these costs, from the first on, fill a batch; 0 if there is room for more."""
        if not len(costs_s):
            return 0
        first = costs_s[: int(self.shape.capacity(costs_s[0]))]
        room = self.shape.capacity(np.maximum.accumulate(first)) - np.arange(1, len(first) + 1)
        if room[-1] > 0:
            return 0
        last = int(np.argmax(room <= 0))
        return last + 1 if room[last] == 0 else last
