"""A coordinator of workers that no process runs."""

from types import SimpleNamespace
from typing import Any


class FakeCoordinator:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.phases: list[str] = []
        self.requests: list[Any] = []
        self.request_stop = SimpleNamespace(remote=lambda: self.requests.append("stop"))
        self.request_regroup = SimpleNamespace(remote=lambda *request: self.requests.append(request))
        self.add_event = SimpleNamespace(remote=self.events.append)
        self.posts: dict[str, Any] = {}
        self.post = SimpleNamespace(remote=self.posts.__setitem__)
        self.set_phase = SimpleNamespace(remote=self.phases.append)
        self.controllers: list[Any] = []
        self.set_controller = SimpleNamespace(remote=self.controllers.append)
