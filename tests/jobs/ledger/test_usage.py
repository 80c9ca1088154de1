import itertools
import random
from typing import Any

import pytest

from jobs.errors import NotFoundError
from jobs.ledger import Ledger
from jobs.model import Gang, Usage
from tests.jobs.ledger.builders import add, make_attempt

HOUR_S = 3600.0
# 10 CPUs and 2 GPUs; half a CPU.
LARGE = Gang(num_workers=2, resources_per_worker={"CPU": 4.0, "GPU": 1.0}, extra={"CPU": 2.0})
SMALL = Gang(num_workers=1, resources_per_worker={"CPU": 0.5})


def held(ledger: Ledger, run_id: str, number: int, hours: tuple[float, float | None], gang: Gang) -> None:
    """An attempt that held its gang from one hour to another."""
    created, ended = hours
    ended_s = None if ended is None else ended * HOUR_S
    with ledger.write() as writer:
        writer.open_attempt(make_attempt(run_id, number, gang=gang, created_s=created * HOUR_S, ended_s=ended_s))


@pytest.fixture
def used(ledger: Ledger) -> Ledger:
    """Three runs: of Ana with two tags and two attempts, of Ana without tags, of Ben; the last one still runs."""
    add(ledger, "a", user="ana", queue="default", tags=["x", "y"])
    add(ledger, "b", user="ana", queue="night", tags=[])
    add(ledger, "c", user="ben", queue="night", tags=["y"])
    add(ledger, "idle", user="eva")
    held(ledger, "a", 1, (1, 3), LARGE)
    held(ledger, "a", 2, (4, 4.5), SMALL)
    held(ledger, "b", 1, (2, 6), LARGE)
    held(ledger, "c", 1, (5, None), LARGE)
    return ledger


def rows(ledger: Ledger, **wanted: Any) -> list[tuple[str, int, float, float, float]]:
    wanted.setdefault("now_s", 10 * HOUR_S)
    return [tuple(usage.model_dump().values()) for usage in ledger.usage.hours(**wanted)]


def test_hours_are_what_attempts_held_for_as_long_as_they_did(used: Ledger) -> None:
    assert rows(used, by="run") == [
        ("a", 2, 2.5, 20.25, 4.0),
        ("b", 1, 4.0, 40.0, 8.0),
        ("c", 1, 5.0, 50.0, 10.0),
    ]
    assert rows(used, by="attempt") == [
        ("a-a1", 1, 2.0, 20.0, 4.0),
        ("a-a2", 1, 0.5, 0.25, 0.0),
        ("b-a1", 1, 4.0, 40.0, 8.0),
        ("c-a1", 1, 5.0, 50.0, 10.0),
    ]


def test_they_are_summed_by_user_queue_and_tag(used: Ledger) -> None:
    assert rows(used, by="user") == [("ana", 3, 6.5, 60.25, 12.0), ("ben", 1, 5.0, 50.0, 10.0)]
    assert rows(used, by="queue") == [("default", 2, 2.5, 20.25, 4.0), ("night", 2, 9.0, 90.0, 18.0)]


def test_a_run_counts_for_each_of_its_tags_and_one_without_is_not_forgotten(used: Ledger) -> None:
    assert rows(used, by="tag") == [
        ("", 1, 4.0, 40.0, 8.0),
        ("x", 2, 2.5, 20.25, 4.0),
        ("y", 3, 7.5, 70.25, 14.0),
    ]


def test_a_window_cuts_what_reaches_over_its_ends(used: Ledger) -> None:
    # From 2.5 to 5.5: 0.5 of a's first, all of its second, 3 of b, 0.5 of c.
    assert rows(used, by="run", since_s=2.5 * HOUR_S, now_s=5.5 * HOUR_S) == [
        ("a", 2, 1.0, 5.25, 1.0),
        ("b", 1, 3.0, 30.0, 6.0),
        ("c", 1, 0.5, 5.0, 1.0),
    ]


def test_what_lies_outside_of_a_window_is_not_there(used: Ledger) -> None:
    assert rows(used, by="run", since_s=4.75 * HOUR_S) == [("b", 1, 1.25, 12.5, 2.5), ("c", 1, 5.0, 50.0, 10.0)]
    assert rows(used, by="run", now_s=1.5 * HOUR_S) == [("a", 1, 0.5, 5.0, 1.0)]
    assert rows(used, by="user", now_s=0.5 * HOUR_S) == []


def test_neighboring_windows_share_out_everything(used: Ledger) -> None:
    edges = [0.0, 1.5, 2.25, 4.5, 5.0, 7.75, 10.0]
    parts = [
        used.usage.hours(by="user", since_s=since * HOUR_S, now_s=until * HOUR_S)
        for since, until in itertools.pairwise(edges)
    ]
    for whole in used.usage.hours(by="user", now_s=10 * HOUR_S):
        shares = [usage for part in parts for usage in part if usage.key == whole.key]
        assert sum(usage.wall_hours for usage in shares) == whole.wall_hours
        assert sum(usage.cpu_hours for usage in shares) == whole.cpu_hours
        assert sum(usage.gpu_hours for usage in shares) == whole.gpu_hours


def test_one_run_s_usage_can_be_asked_for(used: Ledger) -> None:
    assert rows(used, by="attempt", run_id="a") == [("a-a1", 1, 2.0, 20.0, 4.0), ("a-a2", 1, 0.5, 0.25, 0.0)]
    assert rows(used, by="tag", run_id="a") == [("x", 2, 2.5, 20.25, 4.0), ("y", 2, 2.5, 20.25, 4.0)]
    assert rows(used, by="run", run_id="idle") == []
    with pytest.raises(NotFoundError, match="no run is named ghost"):
        used.usage.hours(by="run", now_s=1.0, run_id="ghost")


def test_attempts_come_in_the_order_of_their_numbers(ledger: Ledger) -> None:
    add(ledger, "r")
    for number in range(1, 12):
        held(ledger, "r", number, (number, number + 1), SMALL)
    keys = [usage.key for usage in ledger.usage.hours("attempt", now_s=9e9)]
    assert keys == [f"r-a{number}" for number in range(1, 12)]


def test_sums_are_of_whole_microseconds_so_that_no_order_of_rows_changes_them(ledger: Ledger) -> None:
    rng, wall_us, cpu_us = random.Random(5), 0, 0
    for number in range(40):
        add(ledger, f"r{number}")
        begin, end = rng.random(), 1 + rng.random() * 10 ** rng.randrange(6)
        held(ledger, f"r{number}", 1, (begin, end), Gang(num_workers=3, resources_per_worker={"CPU": 0.1}))
        duration_s = end * HOUR_S - begin * HOUR_S
        wall_us += round(duration_s * 1e6)
        cpu_us += round(duration_s * (3 * 0.1) * 1e6)
    (usage,) = ledger.usage.hours("queue", now_s=9e12)
    hours = (wall_us / 1e6 / HOUR_S, cpu_us / 1e6 / HOUR_S)
    assert usage == Usage(key="default", attempts=40, wall_hours=hours[0], cpu_hours=hours[1], gpu_hours=0.0)
