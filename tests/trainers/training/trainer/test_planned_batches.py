"""What one rank reads, and what it has its node fetch ahead."""

import multiprocessing
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.processes import wait_until_ended
from tests.test_architecture import ROOT
from trainers.data.batch_plan import BatchPlan, BatchShape, Selection, default_window_shards
from trainers.training.trainer.planned_batches import PlannedBatches, PlannedLoader, SampleReference

CLIPS, WORKERS = 60, 3
# A rank that reads, and is killed.
KILLED = """
import multiprocessing, os, signal
from trainers.training.trainer.planned_batches import PlannedLoader
reader = PlannedLoader([0, 1], batch_size=1, num_workers=2, multiprocessing_context="forkserver")
batches = iter(reader)
next(batches)
print(*(process.pid for process in multiprocessing.active_children()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def plan_of(window: int | None) -> BatchPlan:
    rows = np.arange(CLIPS)
    selection = Selection(rows, np.full(CLIPS, 1.0), rows // 10)
    shape = BatchShape.resolve(workers=WORKERS, per_device=2, accumulation=1)
    return BatchPlan(selection, shape, edges_s=(30.0,), seed=1, window_shards=window)


def read_and_fetched(
    window: int | None, first_step: int, rank: int = 1
) -> tuple[list[list[SampleReference]], list[set[int]]]:
    """The forward passes of a rank, and what had been asked for before each of them."""
    asked: set[int] = set()
    batches = PlannedBatches(plan_of(window), rank, lambda positions: asked.update(positions.tolist()), first_step)
    passes, before = [], []
    for requests in batches:
        passes.append(requests)
        before.append(set(asked))
    return passes, before


@pytest.mark.parametrize("window", [None, 2])
def test_a_rank_has_only_its_own_rows_fetched_and_before_it_reads_them(window: int | None) -> None:
    passes, before = read_and_fetched(window, first_step=0)
    own = {request.position for requests in passes for request in requests}
    assert len(own) == CLIPS // WORKERS
    assert before[-1] == own
    for requests, asked in zip(passes, before, strict=True):
        assert {request.position for request in requests} <= asked


def test_a_resumed_rank_has_nothing_fetched_for_the_steps_behind_it() -> None:
    passes, before = read_and_fetched(None, first_step=7)
    assert before[-1] == {request.position for requests in passes[7:] for request in requests}


def test_within_windows_more_steps_are_fetched_ahead() -> None:
    assert len(read_and_fetched(2, first_step=0)[1][0]) > len(read_and_fetched(None, first_step=0)[1][0])


def test_new_runs_shuffle_within_windows_where_shards_come_from_a_bucket() -> None:
    assert default_window_shards("s3://bucket/prepared/abc") == 64
    assert default_window_shards("/prepared/abc") is None


def test_processes_that_read_end_with_the_training() -> None:
    before = set(multiprocessing.active_children())
    reader = PlannedLoader([0, 1, 2, 3], batch_size=1, num_workers=2, persistent_workers=True)  # type: ignore[arg-type]
    next(iter(reader))
    assert len(set(multiprocessing.active_children()) - before) == 2
    reader.end()
    assert set(multiprocessing.active_children()) <= before
    PlannedLoader([0]).end()  # type: ignore[arg-type]


@pytest.mark.integration
def test_processes_that_read_end_with_a_rank_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], cwd=ROOT, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        readers = [int(number) for number in killed.stdout.readline().split()]
        assert killed.wait(120) == -signal.SIGKILL
    assert len(readers) == 2
    for reader in readers:
        wait_until_ended(reader)
