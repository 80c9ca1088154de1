"""What a barrier logs of ranks that wait for each other."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from trainers.distributed import session
from trainers.distributed.session import LoggedBarrier
from trainers.errors import LostWorkerError

TIMEOUT_S = 30.0


class Line:
    """Takes the lines of all ranks; the first sets an event."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []
        self.came = threading.Event()

    def of(self, rank: int) -> Callable[[str], None]:
        def take(line: str) -> None:
            self.lines.append((rank, line))
            self.came.set()

        return take


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FIRST_LINE_S", 0.01)
    monkeypatch.setattr(session, "BETWEEN_LOOKS_S", 0.005)


def ranks(count: int, log: Line, store: Any = None) -> list[LoggedBarrier]:
    shared = store or HashStore()
    return [LoggedBarrier(rank, count, log.of(rank), shared) for rank in range(count)]


def start(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_nobody_goes_on_before_all_have_come() -> None:
    left: list[tuple[int, int]] = []
    came = [0] * 3
    several = ranks(3, Line())

    def run(rank: int) -> None:
        for number in range(50):
            came[rank] = number + 1
            several[rank].wait("counting")
            left.append((number, min(came)))

    threads = [start(lambda rank=rank: run(rank)) for rank in range(3)]  # type: ignore[misc]
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert len(left) == 150
    assert all(least > number for number, least in left)


def test_a_long_wait_is_told_once_for_all_with_who_is_missing_and_where_it_was() -> None:
    log = Line()
    first, second, third = ranks(3, log)
    both = [start(lambda one=one: one.wait("opening the staging folders")) for one in (first, second, third)]  # type: ignore[misc]
    for thread in both:
        thread.join(TIMEOUT_S)
    log.came.clear()
    log.lines.clear()
    waiting = [start(lambda one=one: one.wait("downloading the model")) for one in (first, second)]  # type: ignore[misc]
    assert log.came.wait(TIMEOUT_S)
    third.wait("downloading the model")
    for thread in waiting:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert {rank for rank, _ in log.lines} == {0}, "the first of those who wait speaks"
    line = log.lines[0][1]
    assert line.startswith("downloading the model: 0 s of waiting for rank 2 (last: opening the staging folders)")
    assert line.endswith(", of 3 ranks")


def test_where_the_main_process_is_missing_another_speaks() -> None:
    log = Line()
    first, second = ranks(2, log)
    waiting = start(lambda: second.wait("preparing"))
    assert log.came.wait(TIMEOUT_S)
    first.wait("preparing")
    waiting.join(TIMEOUT_S)
    assert log.lines[0][0] == 1
    assert "rank 0 (last: its start)" in log.lines[0][1]


def test_who_never_comes_is_named_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LONGEST_WAIT", timedelta(seconds=0.05))
    first, _ = ranks(2, Line())
    with pytest.raises(LostWorkerError, match="preparing: 0 s of waiting for rank 1"):
        first.wait("preparing")


def test_many_barriers_leave_few_keys() -> None:
    store: Any = HashStore()
    (alone,) = ranks(1, Line(), store)
    for _ in range(100):
        alone.wait("counting")
    assert store.num_keys() <= 4
