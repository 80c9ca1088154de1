"""How long one decision of the scheduling policy takes: python -m tests.benchmarks.queue [--turns 15].

10,000 waiting runs and 200 that hold their gangs, and 64,000 and 1,000 on 1,000 nodes, each in several situations; the
reason of one run is read in each turn. Prints what was measured, whatever it is: the median and the worst of several
turns on the clock, and the median of the processor time, which other programs on the machine disturb less. Then the
memory that a decision takes for each waiting run, and what is left of it after many.
"""

import argparse
import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from jobs.model import RunState
from jobs.scheduler.decision import Decision, Holding, Waiting
from jobs.scheduler.feasibility import Capacity
from jobs.scheduler.limits import Limits, QueuePart, QueuesConfig
from jobs.scheduler.policy import decide

TURNS = 15
ADDRESS = "http://head:8265"
NOW_S = 1_000_000.0
CPUS_OF_A_GPU = 8.0
GPUS_OF_A_NODE = 8
MEMORY = 2.0**34  # of a node
PER_WORKER = {"GPU": 1.0, "CPU": 4.0}
# A gang of which ten share a GPU.
TENTH = {"GPU": 0.1, "CPU": 0.5}
MOST_MEMORY_RATIO = 1.2
MOST_LEFT_MB = 1.0


@dataclass(frozen=True)
class Size:
    """How much there is.

    Attributes:
        waiting: Runs that wait.
        holding: Runs that hold their gang.
        goal_ms: Longest median of a decision.
    """

    waiting: int
    holding: int
    goal_ms: float


SMALL, LARGE = Size(10_000, 200, 50.0), Size(64_000, 1_000, 350.0)


@cache
def gang(gpus: float) -> Mapping[str, float]:
    """The gang of so many workers; the ledger, too, gives runs of one recipe the same object."""
    return {"GPU": float(gpus), "CPU": 4.0 * gpus + 1}


def unlike(number: int) -> Mapping[str, float]:
    """A gang that no other run has."""
    return {"GPU": 1.0 + number % 8, "CPU": 9.0 + number % 97, "memory": 1e9 + number}


def large_unlike(number: int) -> Mapping[str, float]:
    """A gang that no other run has, and of which no two fit next to each other."""
    return {"GPU": 5_000.0 + number % 1_000, "CPU": 20_000.0 + number, "memory": 1e9 + number}


NO_LIMITS = QueuePart()
CAPS = QueuePart(max_gpus=100, max_cpus=1000, max_running=60, per_user=Limits(max_gpus=8, max_running=4))
WIDE = QueuePart(max_gpus=1_000, max_running=1_000, per_user=Limits(max_gpus=80, max_running=40))
WIDER = QueuePart(max_gpus=7_000, max_running=7_000, per_user=Limits(max_gpus=80, max_running=80))


@dataclass(frozen=True)
class Situation:
    """What waits for what.

    Attributes:
        what: It, in words.
        gpus: GPUs of the cluster.
        size: How much there is.
        held: Gang of holding run number n.
        cpus_of_a_gpu: CPUs of the cluster for each.
        need: Gang of waiting run number n.
        queues: How many queues there are.
        users: How many users there are.
        limits: What each queue allows. None: everything.
        depends_on: What each run depends on, and what is not there yet.
    """

    what: str
    gpus: int
    size: Size = SMALL
    held: Callable[[int], Mapping[str, float]] = lambda number: gang(1 + number % 2)
    cpus_of_a_gpu: float = CPUS_OF_A_GPU
    need: Callable[[int], Mapping[str, float]] = lambda number: gang((1, 2, 4, 8)[number % 4])
    queues: int = 1
    users: int = 20
    limits: QueuePart = NO_LIMITS
    depends_on: tuple[str, ...] = ()

    @property
    def config(self) -> QueuesConfig:
        """The queues."""
        return QueuesConfig(queues={f"queue{number}": self.limits for number in range(self.queues)})

    @property
    def capacity(self) -> dict[str, Capacity]:
        """The cluster, of nodes with 8 GPUs each."""
        node = {"GPU": float(GPUS_OF_A_NODE), "CPU": GPUS_OF_A_NODE * self.cpus_of_a_gpu, "memory": MEMORY}
        count = self.gpus // GPUS_OF_A_NODE
        total = {name: count * value for name, value in node.items()}
        return {ADDRESS: Capacity(total, total, (node,) * count)}

    def rows(self, count: int) -> tuple[list[Waiting], list[Holding]]:
        """So many waiting runs, and those that hold their gangs, in any order."""
        random = Random(7)
        waiting = [
            Waiting(
                id=f"run-{number}",
                queue=f"queue{number % self.queues}",
                user=f"user{number % self.users}",
                priority=random.randrange(5),
                queued_s=NOW_S - random.uniform(0, 40_000),  # half are overdue
                address=ADDRESS,
                need=self.need(number),
                per_worker=PER_WORKER if self.need(number)["GPU"] >= 1 else TENTH,
                num_workers=max(1, int(self.need(number)["GPU"])),
                depends_on=self.depends_on,
            )
            for number in range(count)
        ]
        random.shuffle(waiting)
        return waiting, [
            Holding(
                id=f"held-{number}",
                queue=f"queue{number % self.queues}",
                user=f"user{number % self.users}",
                priority=0,
                queued_s=0.0,
                address=ADDRESS,
                need=self.held(number),
            )
            for number in range(self.size.holding)
        ]


def large(what: str, **fields: Any) -> Situation:
    """A situation of 64,000 runs on 1,000 nodes, of which those that hold a gang have at most 1,500 GPUs."""
    return Situation(what, 8_000, LARGE, **fields)


SITUATIONS = (
    Situation("none starts: the cluster is full", 304),
    Situation("none starts: the same, but CPUs in plenty", 304, cpus_of_a_gpu=100_000),
    Situation("none starts: large ones exclude each other", 400, need=lambda number: gang(216)),
    Situation("none starts: all depend on another run", 304, depends_on=("prep",)),
    Situation("half start", 20_000),
    Situation("all start", 10_400, need=lambda number: gang(1)),
    Situation("20 queues, 200 users: the cluster is full", 304, queues=20, users=200, limits=CAPS),
    Situation("20 queues, 200 users: limits hold most back", 10_400, queues=20, users=200, limits=CAPS),
    Situation("20 queues, 2,000 users: the cluster is full", 304, queues=20, users=2_000, limits=CAPS),
    Situation("20 queues, 2,000 users: limits hold most back", 10_400, queues=20, users=2_000, limits=CAPS),
    Situation(
        "20 queues, 2,000 users: all start", 10_400, need=lambda number: gang(1), queues=20, users=2_000, limits=WIDE
    ),
    Situation("different gangs: the cluster is full", 304, need=unlike),
    large("none starts: the cluster is full", held=lambda number: gang(8)),
    large("none starts: the same, but CPUs in plenty", held=lambda number: gang(8), cpus_of_a_gpu=100_000),
    large("none starts: large ones exclude each other", need=lambda number: gang(6_600)),
    large("none starts: all depend on another run", depends_on=("prep",)),
    large("as many start as fit"),
    large("all start: ten share a GPU", need=lambda number: TENTH),
    large(
        "20 queues, 2,000 users: the cluster is full", held=lambda number: gang(8), queues=20, users=2_000, limits=CAPS
    ),
    large("20 queues, 2,000 users: limits hold most back", queues=20, users=2_000, limits=CAPS),
    large(
        "20 queues, 2,000 users: as many start as fit",
        need=lambda number: gang(1),
        queues=20,
        users=2_000,
        limits=WIDER,
    ),
    large("20 queues, 2,000 users: all start", need=lambda number: TENTH, queues=20, users=2_000, limits=WIDER),
    large("different gangs: the cluster is full", need=unlike, held=lambda number: gang(8)),
    large("different gangs: as many start as fit", need=unlike),
    large("different gangs, also of those that hold: as many start as fit", need=unlike, held=unlike),
    large("different gangs: large ones exclude each other", need=large_unlike),
    large(
        "different gangs, 20 queues, 2,000 users: limits hold most back",
        need=unlike,
        queues=20,
        users=2_000,
        limits=CAPS,
    ),
)
HEADER = ("one decision", "waiting", "holding", "starts", "median", "worst", "CPU", "goal", "met")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.queue", description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=TURNS, help="decisions of each kind")
    parser.add_argument("--waiting", type=int, help="waiting runs in every situation")
    chosen = parser.parse_args(arguments)
    print(row(HEADER))
    print(row(["-" * len(name) for name in HEADER]))
    for situation in SITUATIONS:
        count = chosen.waiting or situation.size.waiting
        starts, clock_ms, processor_ms = measure(situation, chosen.turns, count)
        median, goal = statistics.median(clock_ms), situation.size.goal_ms
        figures = (median, max(clock_ms), statistics.median(processor_ms))
        cells = [situation.what, f"{count:,}", f"{situation.size.holding:,}", f"{starts:,}"]
        cells += [f"{value:.1f} ms" for value in figures]
        print(row([*cells, f"≤ {goal:.0f} ms", "yes" if median <= goal else "NO"]), flush=True)
    for cells in memory(chosen.waiting or LARGE.waiting, chosen.turns):
        print(row(cells), flush=True)
    return 0


def row(cells: Sequence[str]) -> str:
    """A row of Markdown."""
    first, *rest = cells
    return f"| {first:66} | {' | '.join(f'{cell:>8}' for cell in rest)} |"


def measure(situation: Situation, turns: int, count: int) -> tuple[int, list[float], list[float]]:
    """How many start, and milliseconds of each turn: on the clock, and of the processor."""
    waiting, holding = situation.rows(count)
    starts, clock_ms, processor_ms = 0, [], []
    for _ in range(turns):
        began, used = time.perf_counter(), time.process_time()
        decision = decision_of(situation, waiting, holding)
        wait = decision.waits.get(waiting[0].id)
        assert wait is None or wait.reason
        processor_ms.append((time.process_time() - used) * 1e3)
        clock_ms.append((time.perf_counter() - began) * 1e3)
        starts = len(decision.start)
    return starts, clock_ms, processor_ms


def memory(count: int, turns: int) -> list[list[str]]:
    """Rows about the memory of decisions over runs no two of which are alike."""
    situation = next(item for item in SITUATIONS if item.size == LARGE and item.need is unlike)
    each = {}
    for number in (max(1, count // 8), count):
        waiting, holding = situation.rows(number)
        tracemalloc.start()
        decision_of(situation, waiting, holding)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        decision_of(situation, waiting, holding)
        each[number] = (tracemalloc.get_traced_memory()[1] - before) / number
        for _ in range(turns):
            decision_of(situation, waiting, holding)
        gc.collect()
        left_mb = (tracemalloc.get_traced_memory()[0] - before) / 1e6
        tracemalloc.stop()
    small, large_one = each.values()
    ratio = large_one / small
    met = {True: "yes", False: "NO"}
    share = f"memory of a decision for each waiting run: {small:.0f} bytes of 1/8 of them, {large_one:.0f} of all"
    left = f"memory left after {turns} more decisions"
    blank = [""] * 3
    return [
        [share, f"{count:,}", "", *blank, f"{ratio:.2f}×", f"≤ {MOST_MEMORY_RATIO}×", met[ratio <= MOST_MEMORY_RATIO]],
        [left, f"{count:,}", "", *blank, f"{left_mb:.1f} MB", f"≤ {MOST_LEFT_MB:.0f} MB", met[left_mb <= MOST_LEFT_MB]],
    ]


def decision_of(situation: Situation, waiting: Sequence[Waiting], holding: Sequence[Holding]) -> Decision:
    """One decision."""
    return decide(waiting, holding, situation.capacity, situation.config, {"prep": RunState.TRAINING}, NOW_S)


if __name__ == "__main__":
    sys.exit(main())
