import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import DistStoreError, HashStore  # type: ignore[attr-defined]

from trainers.distributed import coordinated_stop
from trainers.distributed.coordinated_stop import LastStep, outcome, vote
from trainers.distributed.session import LocalSession
from trainers.errors import LostWorkerError

FAR = 100_000
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class StoppableSession(LocalSession):
    """A rank that an event requests to stop."""

    request: Any = None

    def stop_requested(self) -> bool:
        return bool(self.request.is_set())


class GoneStore:
    """A store whose other end goes away."""

    def __init__(self) -> None:
        self._store = HashStore()
        self.gone = False

    def __getattr__(self, name: str) -> Any:
        if self.gone:
            raise DistStoreError("connection reset by peer")
        return getattr(self._store, name)


def last_step(session: LocalSession, store: Any = None, first_step: int = 0) -> LastStep:
    return LastStep(session, first_step, store)


def end_of_step(last: LastStep, step: int, metric: str | None = None) -> SimpleNamespace:
    """What the Trainer gets after a step at which a score would be due."""
    control = SimpleNamespace(should_log=False, should_save=False, should_training_stop=False, should_evaluate=True)
    last.on_step_end(SimpleNamespace(metric_for_best_model=metric), SimpleNamespace(global_step=step), control)
    return control


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinated_stop, "POLL_S", 0.005)


def wait_until(condition: Any) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize("seed", range(8))
def test_ranks_that_see_the_request_at_different_times_end_after_the_same_step(seed: int) -> None:
    """Each step is one barrier of all ranks, as the gradients' is; one is requested to stop at a random moment."""
    chance, size = random.Random(seed), 4
    store, together = HashStore(), threading.Barrier(size, timeout=TIMEOUT_S)
    events = [threading.Event() for _ in range(size)]
    ends: dict[int, int] = {}

    def train(rank: int) -> None:
        pauses = random.Random(seed * 10 + rank)
        session = StoppableSession(rank, size, rank, request=events[rank])
        with last_step(session, store) as last:
            for step in range(1, FAR):
                together.wait()
                time.sleep(pauses.uniform(0, 0.004))
                if end_of_step(last, step).should_training_stop:
                    ends[rank] = step
                    assert last.stopped_at == step
                    return

    threads = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    time.sleep(chance.uniform(0, 0.1))
    events[chance.randrange(size)].set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert sorted(ends) == list(range(size)), "a rank waits forever"
    assert len(set(ends.values())) == 1, ends


class CountingStore:
    """Counts the keys that its ranks ask for and write."""

    def __init__(self) -> None:
        self._store = HashStore()
        self.keys: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        def counting(*arguments: Any) -> Any:
            with self._lock:
                self.keys[name] += len(arguments[0]) if name == "check" else 1
            return getattr(self._store, name)(*arguments)

        return counting


@pytest.mark.parametrize("size", [4, 32])
def test_the_requests_of_a_vote_grow_with_the_ranks_and_not_with_their_square(size: int) -> None:
    store, request = CountingStore(), threading.Event()
    for rank in range(size):
        assert outcome(store) is None
        vote(StoppableSession(rank, size, rank, request=request), store, 10 + rank % 2)
    assert [outcome(store) for _ in range(size)] == [11] * size
    assert sum(store.keys.values()) <= 7 * size


def test_the_last_step_saves_and_is_not_scored() -> None:
    request = threading.Event()
    with last_step(StoppableSession(0, 1, 0, request=request), first_step=20) as last:
        assert not end_of_step(last, 21).should_training_stop
        request.set()
        wait_until(lambda: last.skips_evaluation(SimpleNamespace(metric_for_best_model=None)))
        control = end_of_step(last, 22)
        assert control.should_training_stop and control.should_save and control.should_log
        assert not control.should_evaluate
        assert last.stopped_at == 22


def test_a_learning_rate_that_follows_the_scores_gets_its_score() -> None:
    request = threading.Event()
    request.set()
    with last_step(StoppableSession(0, 1, 0, request=request)) as last:
        wait_until(lambda: last.skips_evaluation(SimpleNamespace(metric_for_best_model=None)))
        assert not last.skips_evaluation(SimpleNamespace(metric_for_best_model="loss"))
        assert end_of_step(last, 1, metric="loss").should_evaluate


@pytest.mark.parametrize("stopping", [False, True])
def test_a_rank_that_can_no_longer_vote_says_so_instead_of_keeping_the_others_waiting(stopping: bool) -> None:
    request = threading.Event()
    store = GoneStore()
    with last_step(StoppableSession(0, 2, 0, request=request), store) as last:
        assert not end_of_step(last, 1).should_training_stop
        if stopping:
            request.set()
        store.gone = True
        with pytest.raises(LostWorkerError, match="lost the connection to the ranks' shared store") as raised:
            for step in range(2, FAR):
                end_of_step(last, step)
        assert isinstance(raised.value.__cause__, DistStoreError)


def test_without_a_request_training_continues() -> None:
    with last_step(StoppableSession(0, 1, 0, request=threading.Event())) as last:
        for step in range(1, 50):
            control = end_of_step(last, step)
            assert not control.should_training_stop
            assert control.should_evaluate
    assert last.stopped_at is None
