"""The state that training workers and their driver share: an actor on the driver's node.

Needs no Ray itself, so that the core runs on a machine without it.
"""

from dataclasses import dataclass
from uuid import uuid4

from trainers.distributed.console import Event

# Phases of the workers: none has started yet, or all are being restarted; they work, and a request to stop ends them at
# once; they train, and a request to stop waits for their last checkpoint.
WAITING, WORKING, STOPPABLE = "waiting", "working", "stoppable"
# Topic of why the workers were started again last, for the group that is.
RESTART = "restart"


@dataclass(frozen=True)
class EndRequest:
    """A request to the workers to store a checkpoint and end; without a reason why others go on, training stops."""

    regroup_reason: str | None = None


@dataclass(frozen=True)
class WorkerUpdate:
    """What has changed since the driver's last poll: events to show, and the phase of the workers.

    The worker group, with Ray's id of each rank's node, is the one that began last; None: none has since this
    coordinator started. What was requested of the workers, a coordinator that starts again does not know.
    """

    events: list[Event]
    phase: str | None
    nodes: tuple[str, ...] = ()
    group: str | None = None
    request: EndRequest | None = None


class Coordinator:
    """Holds events until the driver polls them, the workers' phase, and the requests to stop or to leave."""

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
        """Holds a value for others, such as the ranks of a group, see `trainers.scripts.board`."""
        self._posted[topic] = value

    def posted(self, topic: str) -> tuple[str, object | None]:
        """This coordinator's id, which tells that another one has forgotten what was posted; and the value."""
        return self._id, self._posted.get(topic)

    def set_phase(self, phase: str) -> None:
        self._phase = phase

    def begin(self, nodes: tuple[str, ...], group: str) -> None:
        """A new worker group works, on these nodes; what another was requested to leave for is done."""
        self._phase, self._nodes, self._group, self._regroup_reason = WORKING, nodes, group, None

    def poll(self) -> WorkerUpdate:
        """Returns the events since the last poll, the phase, and where the workers are."""
        events, self._events = self._events, []
        return WorkerUpdate(events, self._phase, self._nodes, self._group, self.end_request())

    def set_controller(self, controller: bytes) -> None:
        """Keeps the handle of Ray Train's controller, pickled: to open it imports Ray Train."""
        self._controller = controller

    def controller(self) -> bytes | None:
        """That handle; None: it has not started, or this coordinator has started again since."""
        return self._controller

    def request_stop(self) -> None:
        self._stop_requested = True

    def stop_requested(self) -> bool:
        return self._stop_requested

    def request_regroup(self, reason: str, group: str) -> None:
        """Passes on to the workers that they are to store a checkpoint and leave, unless another group has begun."""
        if self._group in (None, group):
            self._regroup_reason = reason

    def end_request(self) -> EndRequest | None:
        if self._stop_requested:
            return EndRequest()
        return EndRequest(self._regroup_reason) if self._regroup_reason is not None else None
