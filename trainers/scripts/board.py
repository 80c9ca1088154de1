"""Communication between the workers of a group while their programs run."""

import contextlib
import time
from typing import Any, Protocol

import ray
from ray.exceptions import RayError

from trainers.distributed.console import Event
from trainers.distributed.coordinator import EndRequest
from trainers.distributed.ray_connection import COORDINATOR_TIMEOUT_S, end_request, living_nodes, restart_reason
from trainers.errors import LostWorkerError

# Enough retries for a coordinator that died, which restarts within seconds.
TRIES, PAUSE_S = 5, 2.0


class Board(Protocol):
    """Stores one value per topic; on Ray, the coordinator does."""

    def post(self, topic: str, value: Any) -> None:
        """Sets the value of a topic; the value must be picklable."""

    def posted(self, topic: str) -> Any | None:
        """Returns the value of a topic; None if it has none yet, or the board does not respond."""


class CoordinatorBoard:
    """The coordinator as the board of one group, whose topics no other group reads.

    It also collects lines for the driver, and stores requests to end.
    """

    def __init__(self, coordinator: Any, group: str):
        self._coordinator, self._group = coordinator, group
        self._coordinator_id: str | None = None
        # Values posted by this process, which a restarted coordinator has lost.
        self._own: dict[str, Any] = {}

    def post(self, topic: str, value: Any) -> None:
        """Sets a topic's value; raises LostWorkerError if the coordinator does not respond, even after a restart."""
        self._own[topic] = value
        for _ in range(TRIES):
            try:
                ray.get(self._coordinator.post.remote(f"{self._group}/{topic}", value), timeout=COORDINATOR_TIMEOUT_S)
                return
            except RayError as error:
                last = error
                time.sleep(PAUSE_S)
        raise LostWorkerError(
            f"the coordinator of the ranks does not respond: {type(last).__name__}; check whether the driver's node is "
            "overloaded"
        )

    def try_post(self, topic: str, value: Any) -> None:
        """Sets the value of a topic on which this process does not depend; ignores a coordinator that is lost."""
        with contextlib.suppress(LostWorkerError):
            self.post(topic, value)

    def posted(self, topic: str) -> Any | None:
        try:
            call = self._coordinator.posted.remote(f"{self._group}/{topic}")
            coordinator_id, value = ray.get(call, timeout=COORDINATOR_TIMEOUT_S)
        except RayError:
            return None
        if self._coordinator_id not in (None, coordinator_id):
            for own in list(self._own):
                self.try_post(own, self._own[own])
        self._coordinator_id = coordinator_id
        return value

    def show(self, event: Event) -> None:
        """Makes the driver show an event, such as a line."""
        self._coordinator.add_event.remote(event)

    def say_all(self, lines: list[str]) -> None:
        self._coordinator.add_events.remote(lines)

    def begin(self, nodes: tuple[str, ...]) -> None:
        """Tells the driver that the group has begun; `nodes` has the node of each rank."""
        self._coordinator.begin.remote(nodes, self._group)

    def set_phase(self, phase: str) -> None:
        self._coordinator.set_phase.remote(phase)

    def is_alive(self, node: str) -> bool:
        """Returns True if the cluster considers a node alive, or its head does not respond."""
        try:
            return node in living_nodes()
        except (RayError, RuntimeError, OSError):
            return True

    def restart_reason(self) -> str | None:
        """Returns why this group follows another one of the attempt; None if it is the first, or it is not known."""
        return restart_reason(self._coordinator)

    def end_request(self) -> EndRequest | None:
        """Returns the request to the workers; None if there is none, or the coordinator does not respond."""
        return end_request(self._coordinator)
