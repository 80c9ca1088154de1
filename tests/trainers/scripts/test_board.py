"""The board over a coordinator of this process, whose calls a test makes fail."""

from collections.abc import Callable
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError

from trainers.distributed.coordinator import Coordinator
from trainers.errors import LostWorkerError
from trainers.scripts import board
from trainers.scripts.board import CoordinatorBoard


class Handle:
    """The handle of an actor that may start again, when it has forgotten all."""

    def __init__(self) -> None:
        self.actor, self.is_away = Coordinator(), 0

    def __getattr__(self, name: str) -> Any:
        class Method:
            @staticmethod
            def remote(*arguments: Any) -> Callable[[], Any]:
                return lambda: getattr(self.actor, name)(*arguments)

        return Method


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Handle:
    found = Handle()

    def get(call: Callable[[], Any], *, timeout: float) -> Any:
        if found.is_away:
            found.is_away -= 1
            raise GetTimeoutError("away")
        return call()

    monkeypatch.setattr("trainers.scripts.board.ray.get", get)
    monkeypatch.setattr(board, "PAUSE_S", 0.0)
    return found


def test_groups_do_not_see_each_others_topics(handle: Handle) -> None:
    CoordinatorBoard(handle, "a").post("start", 1)
    assert CoordinatorBoard(handle, "a").posted("start") == 1
    assert CoordinatorBoard(handle, "b").posted("start") is None


def test_a_coordinator_that_is_away_for_a_moment_is_waited_for(handle: Handle) -> None:
    board = CoordinatorBoard(handle, "a")
    handle.is_away = 2
    board.post("start", 1)
    handle.is_away = 1
    assert board.posted("start") is None
    assert board.posted("start") == 1
    handle.is_away = 1000
    with pytest.raises(LostWorkerError, match="does not respond: GetTimeoutError"):
        board.post("start", 2)
    board.try_post("start", 2)


def test_what_a_coordinator_has_forgotten_is_posted_again(handle: Handle) -> None:
    first, second = CoordinatorBoard(handle, "a"), CoordinatorBoard(handle, "a")
    first.post("start", 1)
    assert second.posted("start") == 1 and first.posted("failed") is None
    handle.actor = Coordinator()
    assert second.posted("start") is None
    # As each rank does every second.
    assert first.posted("failed") is None
    assert second.posted("start") == 1
