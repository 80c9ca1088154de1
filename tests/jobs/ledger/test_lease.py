import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs.errors import LeaseLostError
from jobs.ledger import Lease, Ledger, RunChangedError
from jobs.ledger.database import Database
from jobs.model import RunState
from tests.jobs.ledger.builders import add, wait_until
from tests.jobs.ledger.ledger_process import ledger_process

TTL_S = 10.0


class Clock:
    """A clock that goes when told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


Candidate = Callable[[str], Lease]


@pytest.fixture
def candidate(ledger: Ledger, clock: Clock) -> Iterator[Candidate]:
    """Makes candidates, each with connections of its own; what `url` shows can be opened, having no password."""
    databases = []

    def make(holder: str) -> Lease:
        databases.append(Database.open(ledger.url))
        return Lease(databases[-1], holder, ttl_s=TTL_S, clock=clock)

    yield make
    for database in databases:
        database.close()


def write(ledger: Ledger, lease: Lease, run_id: str = "r") -> None:
    with ledger.write(lease) as writer:
        writer.change(ledger.run(run_id), cause="written", text=f"{lease.epoch}", at_s=5.0)


class TestOneHolder:
    def test_a_free_lease_is_taken_at_once(self, ledger: Ledger, candidate: Candidate, clock: Clock) -> None:
        lease = candidate("a")
        assert lease.epoch is None
        assert lease.try_hold()
        assert lease.epoch == 1

    def test_it_is_held_for_as_long_as_nobody_else_can_have_it(self, candidate: Candidate, clock: Clock) -> None:
        lease = candidate("a")
        assert not lease.held
        assert lease.try_hold()
        clock.now_s += TTL_S - 0.1
        assert lease.held
        clock.now_s += 0.2
        assert not lease.held, "the holder has slept"
        assert lease.try_hold()
        assert lease.held

    def test_a_holder_keeps_it_as_long_as_it_asks(self, ledger: Ledger, candidate: Candidate, clock: Clock) -> None:
        mine, other = candidate("a"), candidate("b")
        for _ in range(10):
            assert mine.try_hold()
            assert not other.try_hold()
            clock.now_s += TTL_S * 0.9
        assert (mine.epoch, other.epoch) == (1, None)

    def test_a_holder_that_is_busy_keeps_it_until_it_counts_as_hanging(
        self, candidate: Candidate, clock: Clock
    ) -> None:
        mine, other = candidate("a"), candidate("b")
        assert mine.try_hold() and not other.try_hold()
        for _ in range(5):
            clock.now_s += TTL_S * 0.9
            mine.keep(5 * TTL_S)
            assert mine.held and not other.try_hold()
        clock.now_s += TTL_S
        mine.keep(5 * TTL_S)
        assert not mine.held and other.try_hold()
        mine.keep(100 * TTL_S)
        assert not mine.held and other.held

    def test_a_thread_keeps_it_while_its_holder_does_something_else(self, ledger: Ledger, clock: Clock) -> None:
        database = Database.open(ledger.url)
        lease = Lease(database, "a", ttl_s=0.01, clock=clock)
        assert lease.try_hold()
        with lease.kept(3600.0):
            clock.now_s += 1.0
            wait_until(lambda: lease.held, "the lease is renewed")
        database.close()

    def test_a_released_lease_is_free_at_once(self, ledger: Ledger, candidate: Candidate, clock: Clock) -> None:
        mine, other = candidate("a"), candidate("b")
        assert mine.try_hold() and not other.try_hold()
        mine.release()
        assert other.try_hold()
        assert (mine.epoch, other.epoch) == (None, 2)
        mine.release()
        assert other.try_hold()
        assert not mine.try_hold()

    def test_silence_for_its_time_to_live_loses_it(self, ledger: Ledger, candidate: Candidate, clock: Clock) -> None:
        mine, other = candidate("a"), candidate("b")
        assert mine.try_hold() and not other.try_hold()
        clock.now_s += TTL_S - 0.01
        assert not other.try_hold()
        clock.now_s += 0.01
        assert other.try_hold()
        assert not mine.try_hold()
        assert (mine.epoch, other.epoch) == (None, 2)

    def test_silence_is_reckoned_from_the_first_look_by_the_watcher_s_own_clock(
        self, ledger: Ledger, candidate: Candidate, clock: Clock
    ) -> None:
        assert candidate("a").try_hold()
        clock.now_s += 100 * TTL_S
        other = candidate("b")
        assert not other.try_hold()
        clock.now_s += TTL_S
        assert other.try_hold()

    def test_a_watcher_that_slept_itself_looks_again_first(
        self, ledger: Ledger, candidate: Candidate, clock: Clock
    ) -> None:
        mine, other = candidate("a"), candidate("b")
        assert mine.try_hold() and not other.try_hold()
        clock.now_s += 100 * TTL_S
        assert mine.try_hold()
        assert not other.try_hold()

    def test_a_restarted_service_of_the_same_name_waits_like_any_other(
        self, ledger: Ledger, candidate: Candidate, clock: Clock
    ) -> None:
        before, after = candidate("a"), candidate("a")
        assert before.try_hold() and not after.try_hold()
        clock.now_s += TTL_S
        assert after.try_hold()
        assert not before.try_hold()

    def test_one_of_many_that_ask_at_once_gets_it(self, candidate: Candidate, clock: Clock) -> None:
        assert candidate("gone").try_hold()
        leases = [candidate(str(number)) for number in range(8)]
        assert not any(lease.try_hold() for lease in leases)
        clock.now_s += TTL_S
        barrier = threading.Barrier(8)

        def call(lease: Lease) -> bool:
            barrier.wait()
            return lease.try_hold()

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(call, leases)) == 1


class TestWriting:
    def test_only_the_holder_writes(self, ledger: Ledger, candidate: Candidate, clock: Clock) -> None:
        run, mine, other = add(ledger, "r"), candidate("a"), candidate("b")
        assert mine.try_hold()
        with pytest.raises(LeaseLostError, match="b does not hold the lease of the ledger: a holds it"):
            write(ledger, other)
        assert ledger.run("r") == run
        write(ledger, mine)
        assert ledger.run("r").version == 1

    def test_who_has_lost_it_writes_nothing_even_before_it_knows(
        self, ledger: Ledger, candidate: Candidate, clock: Clock
    ) -> None:
        run, mine, other = add(ledger, "r"), candidate("a"), candidate("b")
        assert mine.try_hold() and not other.try_hold()
        clock.now_s += TTL_S
        assert other.try_hold()
        with pytest.raises(LeaseLostError, match="b holds it"):
            write(ledger, mine)
        assert (ledger.run("r"), mine.epoch) == (run, None)

    def test_who_takes_it_back_writes_again_in_a_new_epoch(
        self, ledger: Ledger, candidate: Candidate, clock: Clock
    ) -> None:
        mine, other = candidate("a"), candidate("b")
        add(ledger, "r")
        assert mine.try_hold()
        mine.release()
        with pytest.raises(LeaseLostError, match="it is free"):
            write(ledger, mine)
        assert other.try_hold()
        other.release()
        assert mine.try_hold()
        write(ledger, mine)
        assert ledger.events("r")[-1].text == "3"

    def test_users_need_no_lease(self, ledger: Ledger, candidate: Candidate, clock: Clock) -> None:
        assert candidate("a").try_hold()
        add(ledger, "r")
        assert ledger.requests.request_stop("r", by="ana", at_s=2.0).state == RunState.STOPPED

    def test_no_write_of_an_epoch_comes_after_one_of_the_next(self, ledger: Ledger, ledger_url: str) -> None:
        """Three services that fall silent again and again, and write whenever they believe that they may."""
        add(ledger, "r")
        end, wanted = threading.Event(), 6

        def serve(number: int) -> None:
            own = Ledger.open(ledger_url)
            lease = own.lease(f"service {number}", ttl_s=0.03)
            pause = threading.Event()
            for turn in range(10_000):
                if end.is_set():
                    break
                try:
                    if lease.try_hold():
                        write(own, lease)
                        # Longer than the time to live in every third turn; then it writes before it asks again.
                        pause.wait(0.1 if turn % 3 == number else 0.001)
                        write(own, lease)
                except (LeaseLostError, RunChangedError):
                    lost.append(number)
                pause.wait(0.005)
            own.close()

        lost: list[int] = []
        with ThreadPoolExecutor(3) as pool:
            services = [pool.submit(serve, number) for number in range(3)]
            try:
                wait_until(lambda: len({event.text for event in ledger.events("r")}) > wanted, "a few epochs")
                wait_until(lambda: len(lost) > 0, "a service that was too late")
            finally:
                end.set()
            for service in services:
                service.result()
        epochs = [int(event.text) for event in ledger.events("r") if event.cause == "written"]
        assert epochs == sorted(epochs)
        assert ledger.run("r").version == len(epochs)


class TestProcesses:
    @pytest.mark.integration
    def test_a_killed_service_is_followed_by_the_next(self, ledger: Ledger, ledger_url: str) -> None:
        add(ledger, "r")
        with ledger_process(ledger_url, "a") as first, ledger_process(ledger_url, "b") as second:
            for process in (first, second):
                assert (process.receive(), process.call("")) == ("ready", "open")
            assert first.call("hold") is True and first.call("write r") == 1
            assert second.call("hold") is False
            assert second.call("write r") == "LeaseLostError"
            first.signal(signal.SIGKILL)
            wait_until(lambda: second.call("hold") is True, "the second service to take over")
            assert second.call("epoch") == 2
            assert second.call("write r") == 2
        assert [event.text for event in ledger.events("r")][1:] == ["a", "b"]

    @pytest.mark.integration
    def test_a_paused_service_that_wakes_up_writes_nothing(self, ledger: Ledger, ledger_url: str) -> None:
        add(ledger, "r")
        other = ledger.lease("b", ttl_s=0.5)
        with ledger_process(ledger_url, "a") as paused:
            assert (paused.receive(), paused.call(""), paused.call("hold")) == ("ready", "open", True)
            assert paused.call("write r") == 1
            assert not other.try_hold()
            paused.signal(signal.SIGSTOP)
            paused.tell("write r")
            wait_until(other.try_hold, "the other service to take over")
            write(ledger, other)
            paused.signal(signal.SIGCONT)
            assert paused.receive() == "LeaseLostError"
            assert paused.call("epoch") is None
            assert paused.call("hold") is False
        assert [event.text for event in ledger.events("r")][1:] == ["a", "2"]

    @pytest.mark.integration
    def test_on_postgresql_one_that_is_paused_in_mid_transaction_holds_nobody_up(self, postgres_url: str) -> None:
        ledger = Ledger.open(postgres_url)
        run, other = add(ledger, "r"), ledger.lease("b", ttl_s=0.5)
        with ledger_process(postgres_url, "a") as paused:
            assert (paused.receive(), paused.call(""), paused.call("hold")) == ("ready", "open", True)
            assert paused.call("linger r") == "inside"
            paused.signal(signal.SIGSTOP)
            wait_until(other.try_hold, "the other service to take over")
            paused.signal(signal.SIGCONT)
            paused.tell("go on")
            assert paused.receive() == "LedgerError"
            assert paused.call("write r") == "LeaseLostError"
        assert ledger.run("r") == run
        ledger.close()
