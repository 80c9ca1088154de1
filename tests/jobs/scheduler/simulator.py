"""A small discrete-event simulator: runs come, start when a policy says so, hold their gangs for a while, and end."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jobs.scheduler.decision import Decision, Holding, Waiting
from jobs.scheduler.feasibility import Capacity
from jobs.scheduler.limits import QueuesConfig
from jobs.scheduler.policy import decide

ADDRESS = "http://head:8265"

Policy = Callable[[Sequence[Waiting], Sequence[Holding], Mapping[str, Capacity], QueuesConfig, float], Sequence[str]]


@dataclass(frozen=True)
class Arrival:
    """A run that comes at `run.queued_s` and, once started, runs for `length_s`."""

    run: Waiting
    length_s: float


@dataclass
class World:
    """What there is at one moment.

    Attributes:
        waiting: Runs that have come and not started.
        ends_s: When each holding run ends.
        holding: Runs that hold their gangs.
        started_s: When each started.
    """

    waiting: dict[str, Waiting] = field(default_factory=dict)
    ends_s: dict[str, float] = field(default_factory=dict)
    holding: dict[str, Holding] = field(default_factory=dict)
    started_s: dict[str, float] = field(default_factory=dict)

    def copy(self) -> "World":
        """The same moment, to go on from in another way."""
        return World(dict(self.waiting), dict(self.ends_s), dict(self.holding), dict(self.started_s))


Look = Callable[[World, Decision, float], None]


def simulate(
    arrivals: Iterable[Arrival],
    capacity: Capacity,
    queues: QueuesConfig,
    *,
    policy: Policy | None = None,
    observe: Look = lambda world, decision, now_s: None,
    world: World | None = None,
    from_s: float = 0.0,
    until_s: float = 1e9,
) -> dict[str, float]:
    """Lets time pass until nothing happens any more.

    Args:
        arrivals: Runs to come.
        capacity: What the one cluster has.
        queues: What the queues allow.
        policy: Who starts. None: the policy under test.
        observe: Called after each decision, before it is carried out.
        world: What there is at the beginning. None: nothing.
        from_s: When it begins.
        until_s: When to stop looking.

    Returns:
        When each run started.
    """
    world = world or World()
    lengths = {item.run.id: item.length_s for item in arrivals}
    coming = sorted((item.run for item in arrivals), key=lambda run: run.queued_s)
    coming = [run for run in coming if run.id not in world.started_s and run.id not in world.waiting]
    now_s = from_s
    while now_s <= until_s:
        for name in [name for name, end_s in world.ends_s.items() if end_s <= now_s]:
            del world.ends_s[name], world.holding[name]
        while coming and coming[0].queued_s <= now_s:
            run = coming.pop(0)
            world.waiting[run.id] = run
        for name in _starts(world, capacity, queues, policy, observe, now_s):
            run = world.waiting.pop(name)
            world.holding[name] = held(run)
            world.started_s[name], world.ends_s[name] = now_s, now_s + lengths[name]
        moments = [*world.ends_s.values(), *(run.queued_s for run in coming)]
        # A run becomes overdue without anything else happening.
        moments += [run.queued_s + queues.patience_s + 1 for run in world.waiting.values()]
        later = [moment for moment in moments if moment > now_s]
        if not later:
            break
        now_s = min(later)
    return world.started_s


def _starts(
    world: World, capacity: Capacity, queues: QueuesConfig, policy: Policy | None, observe: Look, now_s: float
) -> Sequence[str]:
    waiting, holding = list(world.waiting.values()), list(world.holding.values())
    if policy is not None:
        return policy(waiting, holding, {ADDRESS: capacity}, queues, now_s)
    decision = decide(waiting, holding, {ADDRESS: capacity}, queues, {}, now_s)
    observe(world, decision, now_s)
    return decision.start


def held(run: Waiting) -> Holding:
    """The run once it holds its gang."""
    return Holding(run.id, run.queue, run.user, run.priority, run.queued_s, run.address, run.need)


def in_order(waiting: Iterable[Waiting], queues: QueuesConfig, now_s: float) -> list[Waiting]:
    """Who ranks before whom, as the rules say it."""

    def rank(run: Waiting) -> tuple[int, float, float, str]:
        overdue = now_s - run.queued_s > queues.patience_s
        return (0, 0, run.queued_s, run.id) if overdue else (1, -run.priority, run.queued_s, run.id)

    return sorted(waiting, key=rank)


def pools_of(run: Waiting | Holding, capacity: Capacity, queues: QueuesConfig) -> dict[str, dict[str, float]]:
    """Each pool of the run, by name, with the limits that it has."""
    part = queues.queues[run.queue]
    named = {f"{run.queue}/{run.user}": part.per_user, run.queue: part}
    pools = {
        name: {"GPU": limits.max_gpus, "CPU": limits.max_cpus, "runs": limits.max_running}
        for name, limits in named.items()
    }
    limited = {name: {key: most for key, most in pool.items() if most is not None} for name, pool in pools.items()}
    return {**limited, run.address: dict(capacity.size)}


def over(
    rows: Iterable[Waiting | Holding], capacity: Capacity, queues: QueuesConfig
) -> list[tuple[str, str, float, float]]:
    """Pools of which these rows together hold more than there is: pool, resource, held, most."""
    held_in: dict[tuple[str, str], float] = {}
    most_of: dict[tuple[str, str], float] = {}
    for row in rows:
        need = {**row.need, "runs": 1.0}
        for pool, limits in pools_of(row, capacity, queues).items():
            for name, most in limits.items():
                key = (pool, name)
                held_in[key] = held_in.get(key, 0.0) + need.get(name, 0.0)
                most_of[key] = most
    return [(*key, value, most_of[key]) for key, value in held_in.items() if value > most_of[key] + 1e-6]


def without_overtaking(
    waiting: Sequence[Waiting],
    holding: Sequence[Holding],
    capacity: Mapping[str, Capacity],
    queues: QueuesConfig,
    now_s: float,
) -> list[str]:
    """The reference: strictly in order of rank, and nobody before the first who has to wait."""
    starts: list[str] = []
    rows: list[Waiting | Holding] = list(holding)
    for run in in_order(waiting, queues, now_s):
        if over([*rows, run], capacity[ADDRESS], queues):
            break
        rows.append(run)
        starts.append(run.id)
    return starts
