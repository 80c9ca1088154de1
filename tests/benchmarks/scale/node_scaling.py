"""Preparing on two nodes against one: python -m tests.benchmarks.scale.node_scaling [--clips 6000].

Logical nodes of one core each on one machine, next to a head without any for the driver. The sides take turns on the
same Ray: tasks of the one are placed on one of the nodes, tasks of the other on both. The first turn of each, in which
workers start, is not counted. Where driver and nodes share the cores, two nodes cannot take less than the computing of
all processes, spread over the cores: that is printed, too.
"""

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import ray
from ray.cluster_utils import Cluster

from tests.benchmarks.scale.figures import Figure, print_figures
from tests.benchmarks.sizes import FULL
from tests.benchmarks.speech import make_speech
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import prepare, run_on_ray
from trainers.data.sources.known_sources import open_sources

GOAL = 0.6
# Of which every task takes so little that as many as a node has cores fit.
ONE, BOTH, SHARE = "of_one_node", "of_both_nodes", 0.001
SIDES = (ONE, BOTH)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale.node_scaling", description=__doc__)
    parser.add_argument("--clips", type=int, default=6000)
    parser.add_argument("--turns", type=int, default=5)
    chosen = parser.parse_args(arguments)
    turns: int = chosen.turns
    with tempfile.TemporaryDirectory(prefix="rayscribe-bench-") as temporary:
        folder = Path(temporary)
        speech = make_speech(folder / "speech", FULL.with_clips(chosen.clips))
        with _two_nodes():
            measured: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
            for turn in range(turns + 1):
                for side, found in measured.items():
                    found.append(_prepare(folder, speech.folder / "train.csv", side, turn))
    one, both = ([seconds for seconds, _ in measured[side][1:]] for side in SIDES)
    ratios = [more / less for less, more in zip(one, both, strict=True)]
    cores = os.cpu_count() or 1
    computed = statistics.median(seconds for _, seconds in measured[BOTH][1:])
    print(f"{speech.clips} clips of {speech.mean_s:.1f} s, {speech.origin}; {cores} cores, {turns} turns\n")
    print_figures(
        [
            Figure("prepare on one node of one core, s", statistics.median(one)),
            Figure("prepare on two nodes of one core each, s", statistics.median(both)),
            Figure("on two nodes, computing of all processes, s", computed),
            Figure("two : one, median of the turns", statistics.median(ratios), most=GOAL),
            Figure("two : one, lowest turn", min(ratios)),
            Figure("two : one, highest turn", max(ratios)),
            Figure("two : one, if that computing filled all cores", computed / cores / statistics.median(one)),
        ]
    )
    return 0


@contextmanager
def _two_nodes() -> Iterator[None]:
    """Joins a Ray of two nodes for tasks."""
    # Ray's sockets lie in it, and a socket's path may have 107 bytes only.
    with tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(num_cpus=1, resources={ONE: 1, BOTH: 1})
            cluster.add_node(num_cpus=1, resources={BOTH: 1})
            ray.init(cluster.address, log_to_driver=False, logging_level=logging.WARNING)
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()


def _prepare(folder: Path, manifest: Path, side: str, turn: int) -> tuple[float, float]:
    """Seconds that preparing takes, from the opened source to the finished set; and those of computing, of all Ray."""
    data = DataPart(train=str(manifest), validation="/nowhere.csv")
    (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",))
    computed, began = _computed(), time.perf_counter()
    made = prepare(
        source,
        data,
        cache_url=str(folder / f"{side}-{turn}"),
        storage_options=StorageOptions(),
        run="benchmark",
        runner=partial(run_on_ray, task_resources={side: SHARE}),
        log=lambda line: None,
    )
    seconds = time.perf_counter() - began
    assert made.summary.prepared == len(source.table)
    return seconds, _computed() - computed


def _computed() -> float:
    """Seconds that this process, its children and theirs have computed."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


if __name__ == "__main__":
    sys.exit(main())
