"""Finds gangs that can never fit, with the amounts in the message. Pure.

Ray places workers. The checks here are valid for any placement: queues, users and the cluster have limits, a worker
must fit on a node, and nodes have room for a limited number of workers. A gang that passes may still have to wait,
since free resources may be fragmented over nodes; then the run waits in Ray, and its gang counts as held.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from jobs.model import Gang
from jobs.scheduler.limits import Limits, QueuesConfig

Resources = Mapping[str, float]

# Ray counts resources in units of 1/10000; rounding errors of sums are far smaller.
EPSILON = 1e-6
GIB = 2.0**30
BYTES = frozenset({"memory", "object_store_memory"})
# Prefix of Ray's resource for a type of accelerator; each node with this type has 1 of it.
TYPE_PREFIX = "accelerator_type:"
# The number of runs, as one more resource.
RUNS = "runs"


@dataclass(frozen=True)
class Capacity:
    """Resources of a cluster. Logical resources in Ray's names.

    Attributes:
        total: All resources of its nodes now.
        can_grow_to: Largest amounts to which its autoscaler can grow it; other resources do not grow.
        nodes: Resources of each node now. Empty if not known.
    """

    total: Resources
    can_grow_to: Resources
    nodes: tuple[Resources, ...] = ()

    @cached_property
    def size(self) -> dict[str, float]:
        """The most that the cluster can have of each resource."""
        names = {*self.total, *self.can_grow_to}
        return {name: max(self.total.get(name, 0.0), self.can_grow_to.get(name, 0.0)) for name in names}

    @cached_property
    def growth(self) -> dict[str, float]:
        return {name: most - self.total.get(name, 0.0) for name, most in self.size.items()}

    def max_workers(self, per_worker: Resources) -> float:
        """Returns the number of such workers that fit on the nodes if these are idle; infinite if nodes are unknown.

        Resources that the autoscaler can still add count as one node, since their nodes are not known, so the result
        may be too large, but never too small.
        """
        if not self.nodes:
            return math.inf
        worker = tuple(per_worker.items())
        if worker not in self._max_workers:
            self._max_workers[worker] = sum(_worker_count(node, per_worker) for node in (*self.nodes, self.growth))
        return self._max_workers[worker]

    @cached_property
    def _max_workers(self) -> dict[tuple[tuple[str, float], ...], float]:
        """Cache of `max_workers`, since a decision has thousands of workers of a few kinds."""
        return {}


def never_fits(
    gang: "Gang | GangParts", queue: str, queues: QueuesConfig, capacity: Capacity | None, address: str
) -> str | None:
    """Returns why a gang can never be admitted, even if all is idle, with the fix; None if it can, or is not known."""
    if isinstance(gang, Gang):
        gang = GangParts(gang.total, gang.resources_per_worker, gang.num_workers, gang.min_workers)
    part = queues.queues.get(queue)
    if part is None:
        return f"job.queue {queue} is not one of the queues {', '.join(sorted(queues.queues))}: name one of these"
    other = "or use another queue (job.queue)"
    return (
        gang.excess_over(caps(part), f"queue {queue} allows", other)
        or gang.excess_over(caps(part.per_user), f"queue {queue} allows each user", other)
        or (gang.excess_over_cluster(capacity, f"the cluster at {address}") if capacity is not None else None)
    )


def caps(limits: Limits) -> dict[str, float]:
    """Returns the limits of resources by Ray's names, without those that are None."""
    named = {"GPU": limits.max_gpus, "CPU": limits.max_cpus}
    return {name: most for name, most in named.items() if most is not None}


@lru_cache(maxsize=4096)
def amount(name: str, value: float) -> str:
    """Formats an amount: `8 GPU`, `0.5 CPU`, `16 GiB memory`, `1 run`."""
    return "1 run" if name == RUNS and value == 1 else f"{number(name, value)} {name}"


@lru_cache(maxsize=4096)
def number(name: str, value: float) -> str:
    """Formats an amount without the resource's name."""
    if name in BYTES:
        return f"{round(value / GIB, 2):g} GiB"
    rounded = round(value, 4)
    return f"{rounded:.0f}" if rounded == int(rounded) else f"{rounded}"


def amounts(resources: Resources) -> str:
    """Formats several amounts: `8 GPU, 16 CPU`."""
    return ", ".join(amount(name, value) for name, value in sorted(resources.items(), reverse=True) if value > 0)


@dataclass(frozen=True, slots=True)
class GangParts:
    """A gang as amounts, of which `num_workers` (largest, if elastic) need `per_worker`; explains exceeded limits."""

    need: Resources
    per_worker: Resources
    num_workers: int
    min_workers: int | None = None

    @property
    def _field(self) -> str:
        return "scaling.num_workers" if self.min_workers is None else "scaling.num_workers.max"

    def _fewer(self, fits: int) -> str:
        if self.min_workers is not None and fits < self.min_workers:
            return f"set scaling.num_workers.min and max to at most {fits}"
        smallest = "" if self.min_workers is None else f" (min {self.min_workers} fits)"
        return f"set {self._field} to at most {fits}{smallest}"

    def excess_over(self, most: Resources, allowed: str, other: str) -> str | None:
        """Returns why the total exceeds `most`, None if it does not; resources that are not in `most` have no limit."""
        for name in sorted(most, reverse=True):  # GPUs first, since that message is more useful
            if self.need.get(name, 0.0) > most[name] + EPSILON:
                return (
                    f"{self._sum(name)}, but {allowed} {amount(name, most[name])}; {self._fix(name, most[name], other)}"
                )
        return None

    def excess_over_cluster(self, capacity: Capacity, cluster: str) -> str | None:
        """Returns why the gang does not fit on the cluster, even after it has grown; None if it fits."""
        size, grows = capacity.size, any(value > EPSILON for value in capacity.growth.values())
        most = {name: size.get(name, 0.0) for name, value in self.need.items() if value > 0}
        verb = "can grow to" if grows else "has"
        reason = self.excess_over(most, f"{cluster} {verb}", "or use a larger cluster (job.address)")
        return reason or self._excess_over_nodes(capacity, cluster)

    def _excess_over_nodes(self, capacity: Capacity, cluster: str) -> str | None:
        most = capacity.max_workers(self.per_worker)
        if most >= self.num_workers:
            return None
        worker = amounts(self.per_worker)
        if most:
            return (
                f"{self._field} {self.num_workers} × ({worker}): the nodes of {cluster} have room for at most "
                f"{most:.0f} such workers; {self._fewer(int(most))}, or smaller scaling.resources_per_worker"
            )
        largest = {
            name: max(node.get(name, 0.0) for node in (*capacity.nodes, capacity.growth)) for name in self.per_worker
        }
        for name, value in sorted(self.per_worker.items(), reverse=True):
            if value > largest[name] + EPSILON:
                return (
                    f"one worker needs {amount(name, value)}, but the largest node of {cluster} has "
                    f"{amount(name, largest[name])}; set scaling.resources_per_worker.{name} to at most "
                    f"{number(name, largest[name])}, and more scaling.num_workers instead"
                )
        return (
            f"one worker needs {worker} together, but no single node of {cluster} has all of it; set "
            "scaling.resources_per_worker to what one node has"
        )

    def _sum(self, name: str) -> str:
        each, total = self.per_worker.get(name, 0.0), self.need[name]
        for_data = self._for_data(name)
        if not each:
            return f"the run needs {amount(name, total)}"
        added = f" + {amount(name, for_data)} for Ray Data" if for_data else ""
        return f"{self._field} {self.num_workers} × {amount(name, each)}{added} = {amount(name, total)}"

    def _fix(self, name: str, most: float, other: str) -> str:
        each, left = self.per_worker.get(name, 0.0), most - self._for_data(name)
        if each and left + EPSILON >= each:
            return f"{self._fewer(math.floor((left + EPSILON) / each))}, {other}"
        if each and left > EPSILON:
            return f"set scaling.resources_per_worker.{name} to at most {number(name, left)}, {other}"
        if name == "GPU":
            return f"set scaling.use_gpu: false and scaling.resources_per_worker.GPU: 0, {other}"
        if name.startswith(TYPE_PREFIX):
            return f"set scaling.accelerator_type to an available type, {other}"
        return f"request less {name}, {other}"

    def _for_data(self, name: str) -> float:
        for_data = self.need[name] - self.num_workers * self.per_worker.get(name, 0.0)
        return for_data if for_data > EPSILON else 0.0


def _worker_count(resources: Resources, per_worker: Resources) -> float:
    wanted = [(name, value) for name, value in per_worker.items() if value > 0]
    if not wanted:
        return math.inf
    return min(max(0, math.floor((resources.get(name, 0.0) + EPSILON) / value)) for name, value in wanted)
