"""Decides when a worker group is replaced: if its node is drained, or if there is capacity for more workers. Pure.

The group then stores a checkpoint, and Ray Train starts another group where there is capacity. Ray Train could resize
an elastic group itself, but would end the workers without a checkpoint. If capacity is lost, an attempt that a queue
can restart ends instead of waiting. If a group waits although nodes may have capacity, they are requested to report it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from trainers.config.parts.scaling_part import ScalingPart
from trainers.config.wording import counted

# Seconds for which capacity must last before a regroup. Ray Train counts the nodes every 20 s (TICK_INTERVAL_S of its
# AutoscalingCoordinator), one count may fail, and without the new count it would start as few workers as before.
STABLE_CAPACITY_S = 45.0
# Seconds between two regroups for capacity; doubles as long as the group does not grow.
RESIZE_BACKOFF_S, MAX_RESIZE_BACKOFF_S = 300.0, 3600.0
# Number of regroups for the same capacity: at the first, Ray Train may not have counted a new node yet.
MAX_RESIZE_ATTEMPTS = 2
# Seconds without capacity before the attempt ends, since nodes rejoin a restarted head one by one.
LOST_CAPACITY_TIMEOUT_S = 15.0

# Seconds from the start of a wait for capacity until nodes are requested to report their free resources, and between
# two requests.
FIRST_RESOURCE_REPORT_S, RESOURCE_REPORT_INTERVAL_S = 20.0, 60.0

Resources = Mapping[str, float]
# Nodes, and the number of workers that each could hold.
WorkersByNode = frozenset[tuple[str, int]]


class ResizePolicy:
    """Decides when a worker group is requested to leave, once for each reason."""

    def __init__(self, scaling: ScalingPart, own_node: str):
        self._scaling, self._own_node = scaling, own_node
        self._leaving: set[str] = set()
        self._workers_by_node: WorkersByNode = frozenset()
        self._since_s = 0.0
        self._tries: Counter[WorkersByNode] = Counter()
        self._size, self._asked_s, self._pause_s = 0, 0.0, 0.0

    def regroup_reason(
        self, group: Sequence[str], free: Mapping[str, Resources], draining: Set[str], now_s: float
    ) -> str | None:
        """Returns why the group has to leave; None if it stays, or was already requested to leave.

        `group` has the id of each rank's node, and `free` the free resources of each living node by its id.
        """
        leaving = (draining & {*group, self._own_node}) - self._leaving
        if leaving:
            self._leaving |= leaving
            ranks = [str(rank) for rank, node in enumerate(group) if node in leaving]
            whose = f"of rank {', '.join(ranks)}" if ranks else "of the driver"
            return f"the node {whose} is being drained"
        if not group or not self._scaling.is_elastic:
            return None
        return self._growth(group, {node: each for node, each in free.items() if node not in draining}, now_s)

    def _growth(self, group: Sequence[str], free: Mapping[str, Resources], now_s: float) -> str | None:
        size = len(group)
        if size > self._size:
            self._pause_s = 0.0
            self._tries.clear()
        each = self._scaling.worker_resources
        counts = {node: group.count(node) + workers_on(there, each) for node, there in free.items()}
        workers = min(sum(counts.values()), self._scaling.max_workers)
        if workers <= size:
            self._workers_by_node = frozenset()
            return None
        # Nodes that cannot hold a worker may come and go.
        by_node = frozenset((node, count) for node, count in counts.items() if count)
        if self._workers_by_node != by_node:
            self._workers_by_node, self._since_s = by_node, now_s
        # If regroups do not fill the same capacity, something uses it that Ray does not count.
        is_vain = self._tries[by_node] >= MAX_RESIZE_ATTEMPTS
        if now_s - self._since_s < STABLE_CAPACITY_S or is_vain or now_s - self._asked_s < self._pause_s:
            return None
        self._tries[by_node] += 1
        self._size, self._asked_s = size, now_s
        self._pause_s = min(max(2 * self._pause_s, RESIZE_BACKOFF_S), MAX_RESIZE_BACKOFF_S)
        return f"resources for {counted(workers, 'worker')} are available; running with {size}"


class LostCapacity:
    """Detects that a cluster can no longer hold a fixed number of workers."""

    def __init__(self, scaling: ScalingPart):
        self._scaling = scaling
        self._since_s: float | None = None

    def is_gone(self, nodes: Iterable[Resources], now_s: float) -> bool:
        """Returns True if there has been no capacity for LOST_CAPACITY_TIMEOUT_S."""
        each = self._scaling.worker_resources
        if sum(workers_on(node, each) for node in nodes) >= self._scaling.min_workers:
            self._since_s = None
            return False
        self._since_s = now_s if self._since_s is None else self._since_s
        return now_s - self._since_s >= LOST_CAPACITY_TIMEOUT_S


class StaleNodes:
    """Finds nodes that may have capacity, while a group waits, although Ray's control store says otherwise.

    The control store deducts the resources of a placement group before the node has agreed. If the call to the node
    fails, as in the seconds after Ray was restarted on a host, the control store restores them only when the node
    reports a change. A node without any work never does, so the group would wait forever (Ray 2.60).
    """

    def __init__(self, scaling: ScalingPart):
        self._scaling = scaling
        self._next_s: float | None = None

    def nodes_to_query(
        self, now_s: float, total: Mapping[str, Resources], free: Mapping[str, Resources], *, waits: bool
    ) -> list[str]:
        """Returns the ids of nodes that should report their free resources; usually empty.

        `total` has the resources of each living node by its id, and `free` those that are free according to the control
        store. `waits` is True while a group waits for capacity.
        """
        if not waits:
            self._next_s = None
            return []
        if self._next_s is None:
            self._next_s = now_s + FIRST_RESOURCE_REPORT_S
        if now_s < self._next_s:
            return []
        self._next_s = now_s + RESOURCE_REPORT_INTERVAL_S
        each = self._scaling.worker_resources
        return [node for node, has in total.items() if workers_on(free.get(node, {}), each) < workers_on(has, each)]


def workers_on(node: Resources, each: Resources) -> int:
    """Returns the number of workers that fit into these resources."""
    # Free resources are a sum, and may be slightly too small by rounding.
    return max(0, min(int((node.get(name, 0.0) + 1e-6) // value) for name, value in each.items() if value > 0))
