"""How long the ledger takes with many runs: python -m tests.benchmarks.ledger [--runs 100000] [--waiting 10000].

Prints what was measured on SQLite and on PostgreSQL, whatever it is: the median and the worst of several calls, each
from the method's call to its return. The runs are put into the tables in bulk; no statistics are gathered for SQLite,
and PostgreSQL is left to collect its own. Needs PostgreSQL's server programs.
"""

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert

from jobs.ledger import Ledger, records, tables
from jobs.ledger.database import Database
from jobs.model import Gang, Progress, Run, RunFilter, RunState
from tests.jobs.ledger.builders import make_attempt, make_run
from tests.postgres import running_server

TURNS = 15
CHUNK = 2_000
DAY_S = 86_400.0
ENDED = ((RunState.SUCCEEDED, 70), (RunState.FAILED, 20), (RunState.STOPPED, 10))
WAITS = ((RunState.QUEUED, 96), (RunState.RETRYING, 3), (RunState.PREEMPTED, 1))
QUEUES = ("default", "night", "urgent")
USERS = tuple(f"user{number}" for number in range(40))
GANGS = tuple(
    Gang(num_workers=workers, resources_per_worker={"CPU": 4.0, "GPU": 1.0}, extra={"CPU": 2.0})
    for workers in (1, 2, 4, 8, 16)
)
# As large as a real one: about 2 KB of JSON.
CONFIG = {part: {f"field_{number}": number / 7 for number in range(16)} for part in ("run", "data", "model", "job")}


@dataclass(frozen=True)
class Sizes:
    """How much there is.

    Attributes:
        runs: All of them.
        waiting: Of these, not yet admitted.
        holding: Of these, with a gang.
    """

    runs: int
    waiting: int
    holding: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ledger", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--waiting", type=int, default=10_000)
    chosen = parser.parse_args(arguments)
    sizes = Sizes(chosen.runs, chosen.waiting, holding=200)
    print(f"{sizes.runs} runs, of which {sizes.waiting} wait and {sizes.holding} hold a gang; milliseconds\n")
    columns: dict[str, dict[str, list[float]]] = {}
    with _sqlite() as url:
        columns["SQLite"] = _measure(url, sizes)
    with running_server() as server:
        columns["PostgreSQL"] = _measure(server.create_schema(), sizes)
    _print(columns)
    return 0


def _measure(url: str, sizes: Sizes) -> dict[str, list[float]]:
    database = Database.open(url)
    began = time.perf_counter()
    now_s = sizes.runs * 60.0
    fill(database, sizes, end_s=now_s)
    database.close()
    ledger = Ledger.open(url)
    print(f"{ledger.url.partition(':')[0]}: filled in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    second = ledger.runs().next_cursor
    middle = ledger.runs(limit=sizes.runs // 12).next_cursor
    calls: dict[str, Callable[[], object]] = {
        "runs(), first page": ledger.runs,
        "runs(), second page": lambda: ledger.runs(cursor=second),
        "runs(), a page far behind": lambda: ledger.runs(cursor=middle),
        "runs(state=QUEUED)": lambda: ledger.runs(RunFilter(states=[RunState.QUEUED])),
        "runs(state=SUCCEEDED)": lambda: ledger.runs(RunFilter(states=[RunState.SUCCEEDED])),
        "runs(states=all that ended)": lambda: ledger.runs(RunFilter(states=[state for state, _ in ENDED])),
        "runs(queue=), common": lambda: ledger.runs(RunFilter(queue="default")),
        "runs(user=)": lambda: ledger.runs(RunFilter(user="user7")),
        "runs(user=), nobody": lambda: ledger.runs(RunFilter(user="nobody")),
        "runs(tag=), common": lambda: ledger.runs(RunFilter(tag="common")),
        "runs(tag=), rare": lambda: ledger.runs(RunFilter(tag="rare")),
        "runs(tag=common, state=PREEMPTED)": lambda: ledger.runs(RunFilter(tag="common", states=[RunState.PREEMPTED])),
        "runs(queue=, user=, state=FAILED)": lambda: ledger.runs(
            RunFilter(queue="night", user="user7", states=[RunState.FAILED])
        ),
        "runs(tag=common, user=nobody)": lambda: ledger.runs(RunFilter(tag="common", user="nobody")),
        "run()": lambda: ledger.run("run-000777"),
        "counts()": ledger.usage.runs,
        "waiting()": ledger.scheduler.waiting,
        "holding()": ledger.scheduler.holding,
        "active_runs()": ledger.active_runs,
        "events(after=), 1000": lambda: ledger.events(None, after=sizes.runs // 2),
        "usage(by=user), everything": lambda: ledger.usage.hours("user", now_s=now_s),
        "usage(by=queue), the last 30 days": lambda: ledger.usage.hours(
            "queue", now_s=now_s, since_s=now_s - 30 * DAY_S
        ),
        "one change with its event": _change(ledger),
    }
    figures = {name: _timed(call) for name, call in calls.items()}
    ledger.close()
    return figures


def _change(ledger: Ledger) -> Callable[[], object]:
    run = ledger.active_runs()[0]

    def change() -> None:
        nonlocal run
        with ledger.write() as writer:
            progress = Progress(phase="TRAINING", step=run.version, loss=0.5)
            run = writer.change(run, cause="phase", text="step", progress=progress, at_s=run.updated_s)

    return change


def _timed(call: Callable[[], object]) -> list[float]:
    call()
    taken = []
    for _ in range(TURNS):
        began = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began) * 1000)
    return taken


def fill(database: Database, sizes: Sizes, *, end_s: float) -> None:
    """Fills the tables with runs of which one was submitted each minute, the last of them a minute before `end_s`."""
    rng = random.Random(11)
    for first in range(0, sizes.runs, CHUNK):
        with database.writing() as connection:
            made = [_run(number, sizes, end_s, rng) for number in range(first, min(first + CHUNK, sizes.runs))]
            _insert(connection, made, rng)


def _run(number: int, sizes: Sizes, end_s: float, rng: random.Random) -> Run:
    """The newest wait, the ones before them hold, all older ones have ended."""
    age = sizes.runs - number
    submitted_s = end_s - age * 60.0
    choices = WAITS if age <= sizes.waiting else ENDED
    state = rng.choices([state for state, _ in choices], [weight for _, weight in choices])[0]
    if sizes.waiting < age <= sizes.waiting + sizes.holding:
        state = RunState.TRAINING
    tags = [tag for tag, of in (("common", 2), ("rare", 5_000)) if number % of == 0]
    return make_run(
        f"run-{number:06}",
        submitted_s=submitted_s,
        user=rng.choice(USERS),
        queue=rng.choices(QUEUES, [80, 15, 5])[0],
        priority=rng.randrange(5),
        gang=rng.choice(GANGS),
        config=CONFIG,
        tags=tags,
        attempt=0 if state == RunState.QUEUED else 1,
        ended_s=submitted_s + 3600.0 if state.ended else None,
    ).model_copy(update={"state": state})


def _insert(connection: Connection, made: list[Run], rng: random.Random) -> None:
    values = [records.insert_values(run) for run in made]
    extra = {"idempotency_key": None, "asked_sha256": "0" * 64}
    connection.execute(insert(tables.runs), [{**run, **extra} for run, _ in values])
    connection.execute(insert(tables.requests), [request for _, request in values])
    tags = [{"run_id": run.id, "tag": tag} for run in made for tag in run.tags]
    connection.execute(insert(tables.run_tags), tags)
    attempts = [
        make_attempt(run.id, gang=run.gang, created_s=run.submitted_s + rng.random(), ended_s=run.ended_s)
        for run in made
        if run.attempt
    ]
    if attempts:
        connection.execute(insert(tables.attempts), [records.attempt_values(attempt) for attempt in attempts])
    connection.execute(insert(tables.events), [event for run in made for event in _events(run)])


def _events(run: Run) -> Iterator[dict[str, Any]]:
    path = [RunState.QUEUED, *([RunState.SETTING_UP, RunState.TRAINING] if run.attempt else []), run.state]
    before: RunState | None = None
    for state in path:
        yield {
            "run_id": run.id,
            "attempt": run.attempt,
            "at_s": run.submitted_s,
            "state": state,
            "before": before,
            "cause": "phase",
            "text": "a line for a person, as long as they are",
        }
        before = state


@contextmanager
def _sqlite() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="rayscribe-bench-"))
    try:
        yield f"sqlite:///{folder / 'ledger.db'}"
    finally:
        shutil.rmtree(folder)


def _print(columns: Mapping[str, Mapping[str, list[float]]]) -> None:
    names = next(iter(columns.values())).keys()
    wide = max(map(len, names))
    print(" " * wide + "".join(f"  {f'{database}: median':>20} {'worst':>8}" for database in columns))
    for name in names:
        cells = [(statistics.median(figures[name]), max(figures[name])) for figures in columns.values()]
        print(f"{name:{wide}}" + "".join(f"  {median:>20.1f} {worst:>8.1f}" for median, worst in cells))


if __name__ == "__main__":
    sys.exit(main())
