"""How long one decision of the scheduling policy takes: python -m tests.benchmarks.queue [--turns 15].

10,000 waiting runs and 200 that hold their gangs, in several situations. Prints what was measured, whatever it is: the
median and the worst of several turns on the clock, and the median of the processor time, which other programs on the
machine disturb less.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from jobs.lifecycle import RunState
from jobs.scheduler.feasibility import Amounts
from jobs.scheduler.policy import Capacity, Holding, Limits, QueuePart, QueuesConfig, Waiting, decide

WAITING, HOLDING = 10_000, 200
TURNS = 15
GOAL_MS = 50.0
ADDRESS = "http://head:8265"
NOW_S = 1_000_000.0
CPUS_OF_A_GPU = 8.0
MEMORY = 2.0**34  # of a node
PER_WORKER = Amounts({"GPU": 1.0, "CPU": 4.0})


@cache
def gang(gpus: int) -> Mapping[str, float]:
    """The gang of so many workers; the ledger, too, gives runs of one recipe the same object."""
    return Amounts({"GPU": float(gpus), "CPU": 4.0 * gpus + 1})


NO_LIMITS = QueuePart()
CAPS = QueuePart(max_gpus=100, max_cpus=1000, max_running=60, per_user=Limits(max_gpus=8, max_running=4))
WIDE = QueuePart(max_gpus=1_000, max_running=1_000, per_user=Limits(max_gpus=80, max_running=40))


@dataclass(frozen=True)
class Situation:
    """What waits for what.

    Attributes:
        what: It, in words.
        gpus: GPUs of the cluster.
        cpus_of_a_gpu: CPUs of the cluster for each.
        need: Gang of waiting run number n.
        queues: How many queues there are.
        users: How many users there are.
        limits: What each queue allows. None: everything.
        depends_on: What each run depends on, and what is not there yet.
    """

    what: str
    gpus: int
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
        node = {"GPU": 8.0, "CPU": 8 * self.cpus_of_a_gpu, "memory": MEMORY}
        count = self.gpus // 8
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
                per_worker=PER_WORKER,
                num_workers=int(self.need(number)["GPU"]),
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
                need=gang(1 + number % 2),
            )
            for number in range(HOLDING)
        ]


def unlike(number: int) -> Mapping[str, float]:
    """A gang that no other run has."""
    return {"GPU": 1.0 + number % 8, "CPU": 9.0 + number % 997, "memory": 1e9 + number}


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
    Situation("10,000 different gangs: the cluster is full", 304, need=unlike),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.queue", description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=TURNS, help="decisions of each kind")
    parser.add_argument("--waiting", type=int, default=WAITING, help="waiting runs")
    chosen = parser.parse_args(arguments)
    head = f"one decision: {chosen.waiting:,} waiting, {HOLDING} holding"
    print(f"{head:48} {'starts':>7} {'median':>9} {'worst':>9} {'CPU':>9}")
    for situation in SITUATIONS:
        starts, clock_ms, processor_ms = measure(situation, chosen.turns, chosen.waiting)
        met = "" if statistics.median(clock_ms) <= GOAL_MS else f"   goal {GOAL_MS:.0f} ms: NO"
        figures = (statistics.median(clock_ms), max(clock_ms), statistics.median(processor_ms))
        print(f"{situation.what:48} {starts:7} " + " ".join(f"{value:6.1f} ms" for value in figures) + met, flush=True)
    return 0


def measure(situation: Situation, turns: int, count: int) -> tuple[int, list[float], list[float]]:
    """How many start, and milliseconds of each turn: on the clock, and of the processor."""
    waiting, holding = situation.rows(count)
    capacity, queues, states = situation.capacity, situation.config, {"prep": RunState.TRAINING}
    starts, clock_ms, processor_ms = 0, [], []
    for _ in range(turns):
        began, used = time.perf_counter(), time.process_time()
        decision = decide(waiting, holding, capacity, queues, states, NOW_S)
        processor_ms.append((time.process_time() - used) * 1e3)
        clock_ms.append((time.perf_counter() - began) * 1e3)
        starts = len(decision.start)
    return starts, clock_ms, processor_ms


if __name__ == "__main__":
    sys.exit(main())
