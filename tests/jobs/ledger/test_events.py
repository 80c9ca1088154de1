import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs.errors import NotFoundError
from jobs.ledger import Ledger
from jobs.model import RunState
from tests.jobs.ledger.builders import add, add_in_state, make_run


def test_numbers_grow_over_all_runs_and_each_run_has_its_own(ledger: Ledger) -> None:
    add(ledger, "a")
    add_in_state(ledger, "b", RunState.TRAINING)
    ledger.requests.request_stop("a", by="ana", at_s=2.0)
    every = ledger.events(None)
    numbers = [event.number for event in every]
    assert numbers == sorted(set(numbers))
    assert [(event.run_id, event.cause) for event in every] == [
        ("a", "submitted"),
        ("b", "submitted"),
        ("b", "test"),
        ("b", "test"),
        ("a", "stop_requested"),
    ]
    assert ledger.events("b") == [event for event in every if event.run_id == "b"]


def test_going_on_after_the_last_number_misses_and_repeats_nothing(ledger: Ledger) -> None:
    for name in "abcde":
        add_in_state(ledger, name, RunState.TRAINING)
    every, found, after = ledger.events(None), [], 0
    while part := ledger.events(None, after=after, limit=4):
        assert len(part) <= 4
        found += part
        after = part[-1].number
    assert found == every
    assert len(every) == 15
    assert ledger.events("c", after=ledger.events("c")[0].number) == ledger.events("c")[1:]
    assert ledger.events("c", after=10**30) == []
    assert ledger.events("c", after=-(10**30)) == ledger.events("c")


def test_a_number_is_not_given_while_an_earlier_one_is_not_yet_to_be_seen(ledger: Ledger, ledger_url: str) -> None:
    run, other = add(ledger, "slow"), Ledger.open(ledger_url)
    with ThreadPoolExecutor(1) as pool:
        with ledger.write() as writer:
            writer.change(run, cause="first", text="", at_s=1.0)
            late = pool.submit(add, other, "fast")
            # The second writer's turn has not come, however long it has been asking.
            assert threading.Event().wait(0.3) is False
            assert [event.cause for event in other.events(None)] == ["submitted"]
            assert not late.done()
        late.result()
    assert [(event.run_id, event.cause) for event in ledger.events(None)] == [
        ("slow", "submitted"),
        ("slow", "first"),
        ("fast", "submitted"),
    ]
    other.close()


@pytest.mark.integration
def test_who_follows_many_writers_sees_each_event_once_in_order(ledger: Ledger, ledger_url: str) -> None:
    writers, each = 6, 15
    done, seen, reader = threading.Event(), [], Ledger.open(ledger_url)

    def write(number: int) -> None:
        own = Ledger.open(ledger_url)
        for turn in range(each):
            own.requests.add_run(make_run(f"w{number}-{turn}"), text="")
        own.close()

    def follow() -> None:
        after = 0
        while True:
            last_look = done.is_set()
            part = reader.events(None, after=after, limit=7)
            seen.extend(part)
            after = part[-1].number if part else after
            if last_look and not part:
                return

    with ThreadPoolExecutor(writers + 1) as pool:
        following = pool.submit(follow)
        for future in [pool.submit(write, number) for number in range(writers)]:
            future.result()
        done.set()
        following.result()
    assert seen == ledger.events(None)
    assert len(seen) == writers * each
    reader.close()


def test_an_event_of_a_change_that_was_undone_is_never_seen(ledger: Ledger) -> None:
    run = add(ledger, "r")
    with pytest.raises(ZeroDivisionError), ledger.write() as writer:
        writer.change(run, cause="undone", text="", at_s=1.0)
        raise ZeroDivisionError
    with ledger.write() as writer:
        writer.change(run, cause="done", text="", at_s=1.0)
    assert [event.cause for event in ledger.events("r")] == ["submitted", "done"]


def test_events_of_a_run_that_is_not_there_are_not_an_empty_list(ledger: Ledger) -> None:
    assert ledger.events(None) == []
    with pytest.raises(NotFoundError, match="no run is named ghost"):
        ledger.events("ghost")
