"""How often a node fetches each shard of a set in a bucket: python -m tests.benchmarks.scale.shard_fetches.

Ranks with loader workers of their own read two epochs of a batch plan, step by step together, through the node's copy
of shards, whose bound holds part of the set. The bucket's server counts. A model of the defaults for clips of 5.7 s and
256 utterances a step, at a quarter of their size: 64 batches a window, a node with room for ten windows. Clip lengths
are spread as speech is, so that rare lengths wait over several windows for a batch of their own.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from tests.benchmarks.scale.figures import Figure, print_figures
from tests.benchmarks.scale.object_server import BUCKET, COUNTS, serving
from tests.s3 import AWS_VARIABLES
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.audio import encode_flac
from trainers.data.batch_plan import BatchPlan, BatchShape, bucket_edges
from trainers.data.preparation import SHARD_SCHEMA
from trainers.data.prepared_set import ClipReader, PreparedSet, find, finish, shard_name
from trainers.data.selection import Bounds, select_training
from trainers.storage import open_storage
from trainers.training.trainer.planned_batches import PlannedBatches, PlannedLoader, SampleReference

GOAL = 1.2
EPOCHS = 2
PER_DEVICE = 4
ROWS_PER_SHARD = 64
WINDOWS_HELD = 10
WAIT_S = 120.0
DATA = DataPart(train="train.csv", validation="valid.csv")


@dataclass(frozen=True)
class Node:
    """The node that is measured, and its part in the training.

    Attributes:
        endpoint: Of the bucket.
        key: Of the prepared set.
        workers: Ranks of the training.
        ranks: Those of them on this node.
        loaders: Loader workers of each.
        window_shards: Shuffle window.
        cache_bytes: Bound of the node's copy.
    """

    endpoint: str
    key: str
    workers: int
    ranks: int
    loaders: int
    window_shards: int | None
    cache_bytes: int

    def prepared(self) -> PreparedSet:
        """The set."""
        options = StorageOptions(self.endpoint)
        found = find(open_storage(f"s3://{BUCKET}", options), self.key, options)
        assert found is not None
        return found


class _Clips:
    """Reads clips as training does; gives their lengths only."""

    def __init__(self, reader: ClipReader):
        self._reader = reader

    def __getitem__(self, request: SampleReference) -> int:
        return len(self._reader.read(request.position))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale.shard_fetches", description=__doc__)
    parser.add_argument("--shards", type=int, default=480)
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=4)
    chosen = parser.parse_args(arguments)
    os.environ.update(AWS_VARIABLES)
    figures = []
    with tempfile.TemporaryDirectory(prefix="rayscribe-bench-") as temporary:
        bucket = Path(temporary) / "bucket"
        bucket.mkdir()
        shard_bytes = write_set(bucket, "set", chosen.shards)
        for workers in (chosen.ranks, 2 * chosen.ranks):
            with serving(bucket) as endpoint:
                bound = WINDOWS_HELD * chosen.window * shard_bytes
                node = Node(endpoint, "set", workers, chosen.ranks, 2, chosen.window, bound)
                most, mean = _fetches(node, Path(temporary) / f"node-{workers}", chosen.shards)
            what = f"{chosen.ranks} of {workers} ranks on the node: fetches of a shard in an epoch"
            figures += [Figure(f"{what}, mean", mean, most=GOAL), Figure(f"{what}, most", most, digits=1)]
    print(
        f"{chosen.shards} shards of {shard_bytes / 1e3:.0f} kB, windows of {chosen.window}, room for "
        f"{WINDOWS_HELD * chosen.window} on the node, 2 loader workers a rank, {EPOCHS} epochs\n"
    )
    print_figures(figures)
    return 0


def write_set(bucket: Path, key: str, shards: int) -> int:
    """Writes a prepared set of silent clips; gives the bytes of its largest shard."""
    storage = open_storage(str(bucket))
    count = shards * ROWS_PER_SHARD
    # Mean 5.7 s; one in twenty is longer than 12 s. Rounded, so that few lengths have to be encoded.
    durations_s = np.clip(np.random.default_rng(5).lognormal(1.6, 0.55, count), 0.3, 30.0).round(1)
    ids = [f"clip-{row:07d}" for row in range(count)]
    index = pa.table(
        {
            "id": ids,
            "shard": np.arange(count) // ROWS_PER_SHARD,
            "row": np.arange(count) % ROWS_PER_SHARD,
            "duration_s": durations_s,
            "text": ["a word or two"] * count,
        }
    )
    sizes = []
    for number in range(shards):
        first = number * ROWS_PER_SHARD
        rows = [
            {
                "id": ids[row],
                "audio": {"bytes": _silence(durations_s[row]), "path": None},
                "text": "a word or two",
                "duration_s": durations_s[row],
                "speaker": None,
            }
            for row in range(first, first + ROWS_PER_SHARD)
        ]
        path = bucket / f"{key}-bench" / shard_name(number)
        path.parent.mkdir(exist_ok=True)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, SHARD_SCHEMA) as writer:
            writer.write_table(pa.Table.from_pylist(rows, schema=SHARD_SCHEMA))
        sizes.append(path.stat().st_size)
    finish(storage, f"{key}-bench", key, index, [], sum(sizes))
    return max(sizes)


@cache
def _silence(duration_s: float) -> bytes:
    return encode_flac(np.zeros(round(duration_s * 16_000), np.float32), 16_000)


def _fetches(node: Node, temporary: Path, shards: int) -> tuple[float, float]:
    """The most and the mean fetches of a shard in an epoch."""
    temporary.mkdir()
    context = multiprocessing.get_context("fork")
    together = context.Barrier(node.ranks)
    with patch.object(tempfile, "tempdir", str(temporary)):
        ranks = [context.Process(target=_read, args=(node, rank, together)) for rank in range(node.ranks)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    assert [process.exitcode for process in ranks] == [0] * node.ranks
    with urllib.request.urlopen(f"{node.endpoint}/{BUCKET}/{COUNTS}") as response:
        counts = [count for key, count in json.load(response).items() if key.endswith(".arrow")]
    return max(counts) / EPOCHS, sum(counts) / shards / EPOCHS


def _read(node: Node, rank: int, together: Any) -> None:
    """One rank: reads its batches of every epoch, each step at the same time as the others."""
    prepared = node.prepared()
    labels = np.ones(len(prepared.index), np.int64)
    selection = select_training(prepared.index, labels, DATA, Bounds(30.0, 448)).selection
    shape = BatchShape.resolve(workers=node.workers, per_device=PER_DEVICE, accumulation=1)
    edges_s = bucket_edges(30.0, bucketed=True)
    plan = BatchPlan(selection, shape, edges_s=edges_s, seed=1, window_shards=node.window_shards)
    reader = ClipReader(prepared, cache_bytes=node.cache_bytes)
    batches = PlannedBatches(plan, rank, reader.prefetch, 0)
    clips: Any = _Clips(reader)
    loader = PlannedLoader(clips, batch_sampler=batches, collate_fn=sum, num_workers=node.loaders)
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for _ in loader:
            together.wait(WAIT_S)


if __name__ == "__main__":
    sys.exit(main())
