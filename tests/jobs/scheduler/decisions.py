"""Waiting and holding runs, clusters and queues for tests of the scheduling policy, and what it decides."""

from collections.abc import Mapping
from typing import Any

from jobs.model import RunState
from jobs.scheduler.decision import Decision, Holding, Waiting
from jobs.scheduler.feasibility import Capacity
from jobs.scheduler.limits import QueuePart, QueuesConfig
from jobs.scheduler.policy import decide

HERE = "http://head:8265"
NOW_S = 100_000.0
HOUR_S = 3600.0


def cluster(gpus: float = 0.0, cpus: float = 1000.0, *, grows_to: float | None = None, nodes: Any = ()) -> Capacity:
    """A cluster with so many GPUs and CPUs."""
    total = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    grown = total | ({"GPU": grows_to} if grows_to is not None else {})
    return Capacity(total=total, can_grow_to=grown, nodes=tuple(nodes))


def run(id_: str, gpus: float = 0.0, cpus: float = 0.0, *, workers: int = 1, **fields: Any) -> Waiting:
    """A run that waits to start; those with a smaller `queued_s` came earlier."""
    need = {name: value for name, value in {"GPU": gpus, "CPU": cpus, **fields.pop("need", {})}.items() if value}
    row: dict[str, Any] = {"queue": "default", "user": "ana", "priority": 0, "queued_s": NOW_S - 60, "address": HERE}
    each = {name: value / workers for name, value in need.items()}
    return Waiting(id=id_, need=need, per_worker=each, num_workers=workers, **{**row, **fields})


def held(*args: Any, **fields: Any) -> Holding:
    """A run that holds its gang."""
    row = run(*args, **fields)
    return Holding(row.id, row.queue, row.user, row.priority, row.queued_s, row.address, row.need)


def queues(patience_s: float = 6 * HOUR_S, **parts: QueuePart) -> QueuesConfig:
    """Queues with limits."""
    return QueuesConfig(patience_s=patience_s, queues=dict(parts))


def decided(
    *waiting: Waiting,
    holding: tuple[Holding, ...] = (),
    on: Capacity | Mapping[str, Capacity] | None = None,
    queues: QueuesConfig | None = None,
    dependencies: Mapping[str, RunState] | None = None,
) -> Decision:
    """What the policy decides."""
    clusters = {HERE: on or cluster(16)} if not isinstance(on, Mapping) else on
    return decide(waiting, holding, clusters, queues or QueuesConfig(), dependencies or {}, NOW_S)


def reason(decision: Decision, run_id: str) -> str:
    """The reason why a run waits."""
    return decision.waits[run_id].reason
