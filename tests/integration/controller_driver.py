"""A controller in the test's own process, driven round by round."""

import time
from collections.abc import Callable
from typing import Any

from jobs.model import Cause, Run
from jobs.service.controller import Controller
from tests.integration.short_jobs import Workspace

TIMEOUT_S = 600.0
POLL_S = 0.2


class ControllerDriver:
    """A controller in this process, whose clock can be put forward over a backoff."""

    def __init__(self, workspace: Workspace, *, poll_s: float = POLL_S):
        """Starts with the true time.

        Args:
            workspace: Whose runs are driven.
            poll_s: Between two rounds. Seconds.
        """
        self.workspace, self._ahead_s, self._poll_s = workspace, 0.0, poll_s
        lease = workspace.ledger.lease("test", ttl_s=5.0)
        self._controller = Controller(
            workspace.ledger, workspace.clusters, workspace.packages, workspace.queues, lease=lease, clock=self.now_s
        )

    def now_s(self) -> float:
        """The time, put forward."""
        return time.time() + self._ahead_s

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Rounds until a condition holds."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, f"no {what}: {[(r.id, r.state, r.reason) for r in self.runs()]}"
            self._controller.round()
            time.sleep(self._poll_s)

    def until_ended(self, name: str) -> Run:
        """Rounds until a run has ended; what waits for a retry need not wait."""

        def ended() -> bool:
            self.skip_backoff(name)
            return self.workspace.ledger.run(name).state.ended

        self.until(ended, f"end of {name}")
        return self.workspace.ledger.run(name)

    def skip_backoff(self, name: str) -> None:
        """Puts the clock forward to the time of a run's retry."""
        run = self.workspace.ledger.run(name)
        if run.not_before_s is not None:
            self._ahead_s += max(0.0, run.not_before_s - self.now_s())

    def until_step(self, name: str, step: int) -> None:
        """Rounds until a run's training has come this far."""

        def reached() -> bool:
            run = self.workspace.ledger.run(name)
            assert not run.state.ended, run.reason
            return run.progress is not None and (run.progress.step or 0) >= step

        self.until(reached, f"step {step} of {name}")

    def runs(self) -> list[Run]:
        """All runs, and what those that wait wait for."""
        return self.workspace.service.runs(limit=100).runs

    def causes(self, name: str) -> list[Cause | None]:
        """What each attempt ended with."""
        return [item.cause for item in self.workspace.ledger.attempts(name)]

    def record(self, name: str) -> dict[str, Any]:
        """What a short job wrote when it began."""
        self.until(lambda: any(item["run"] == name for item in self.workspace.records()), f"start of {name}")
        return next(item for item in self.workspace.records() if item["run"] == name)
