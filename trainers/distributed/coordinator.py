"""State that the training workers and their driver share, in an actor on the driver's node.

Does not import Ray, so that the core runs without it.
"""

from dataclasses import dataclass
from uuid import uuid4

from trainers.distributed.console import Event

# Phases of the workers: waiting (none has started yet, or all are being restarted), working (a stop request ends them
# immediately), stoppable (they train, and a stop request waits for their last checkpoint).
WAITING, WORKING, STOPPABLE = "waiting", "working", "stoppable"
# Topic under which the reason of the last restart is posted, for the new worker group.
RESTART = "restart"


@dataclass(frozen=True)
class EndRequest:
    """A request to the workers to store a checkpoint and end. With `regroup_reason`, another worker group continues."""

    regroup_reason: str | None = None


@dataclass(frozen=True)
class WorkerUpdate:
    """Changes since the driver's last poll: events to show, and the phase of the workers.

    `group` and `nodes` are the latest worker group and Ray's id of each rank's node; None and empty if no group has
    begun since this coordinator started. A restarted coordinator has lost the `request` to the workers.
    """

    events: list[Event]
    phase: str | None
    nodes: tuple[str, ...] = ()
    group: str | None = None
    request: EndRequest | None = None


class Coordinator:
    """Holds events until the driver polls them, the workers' phase, and requests to stop or to regroup."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._phase: str | None = None
        self._nodes: tuple[str, ...] = ()
        self._group: str | None = None
        self._stop_requested = False
        self._regroup_reason: str | None = None
        self._controller: bytes | None = None
        self._id = uuid4().hex
        self._posted: dict[str, object] = {}

    def add_event(self, event: Event) -> None:
        self._events.append(event)

    def add_events(self, events: list[Event]) -> None:
        self._events += events

    def post(self, topic: str, value: object) -> None:
        """Stores a value for other processes, such as the ranks of a group, see `trainers.scripts.board`."""
        self._posted[topic] = value

    def posted(self, topic: str) -> tuple[str, object | None]:
        """Returns this coordinator's id and the value. Another id means that earlier values are lost."""
        return self._id, self._posted.get(topic)

    def set_phase(self, phase: str) -> None:
        self._phase = phase

    def begin(self, nodes: tuple[str, ...], group: str) -> None:
        """Records that a new worker group runs on these nodes, and clears the request to regroup."""
        self._phase, self._nodes, self._group, self._regroup_reason = WORKING, nodes, group, None

    def poll(self) -> WorkerUpdate:
        """Returns the events since the last poll, the phase, and the nodes of the workers."""
        events, self._events = self._events, []
        return WorkerUpdate(events, self._phase, self._nodes, self._group, self.end_request())

    def set_controller(self, controller: bytes) -> None:
        """Stores the pickled handle of Ray Train's controller; unpickling it imports Ray Train."""
        self._controller = controller

    def controller(self) -> bytes | None:
        """Returns the controller's handle; None if it has not started, or this coordinator has restarted since."""
        return self._controller

    def request_stop(self) -> None:
        self._stop_requested = True

    def stop_requested(self) -> bool:
        return self._stop_requested

    def request_regroup(self, reason: str, group: str) -> None:
        """Requests the workers to store a checkpoint and leave, unless another group has begun."""
        if self._group in (None, group):
            self._regroup_reason = reason

    def end_request(self) -> EndRequest | None:
        if self._stop_requested:
            return EndRequest()
        return EndRequest(self._regroup_reason) if self._regroup_reason is not None else None
