"""Rank, world size and reporting of a process with torchrun or alone. For Ray, see `ray_workers`.

The training core uses nothing else of its environment, so that the same code runs with and without Ray.
"""

import contextlib
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch.distributed

from trainers.distributed.console import Event, show
from trainers.distributed.console.plain_lines import line_of
from trainers.distributed.gauges import LAST_PROGRESS, Gauge
from trainers.distributed.logged_barrier import COLLECTIVE_TIMEOUT, open_logged_barrier
from trainers.distributed.signals import STOP_SIGNAL
from trainers.errors import ConfigError, RayscribeError

TORCHRUN_VARIABLES = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


@dataclass(frozen=True)
class Session(ABC):
    """One of `world_size` processes that train together; `local_rank` is its index on its node."""

    rank: int
    world_size: int
    local_rank: int

    @property
    def is_main_process(self) -> bool:
        """True if this rank writes for all."""
        return self.rank == 0

    @property
    @abstractmethod
    def node(self) -> str:
        """Name of this rank's node; nodes may share their disks and their temporary folder."""

    @abstractmethod
    def show(self, event: Event) -> None:
        """Shows an event or a line in the driver's output."""

    def show_from_main(self, event: Event) -> None:
        if self.is_main_process:
            self.show(event)

    @abstractmethod
    def set_gauge(self, gauge: Gauge, value: float, **labels: str) -> None:
        """Sets a gauge of this rank, in the gauge's unit, for monitoring.

        Takes microseconds, and does not block. `labels` are those in addition to run, attempt and rank.
        """

    def set_gauge_from_main(self, gauge: Gauge, value: float, **labels: str) -> None:
        if self.is_main_process:
            self.set_gauge(gauge, value, **labels)

    def record_progress(self) -> None:
        """Shows in a gauge that this rank is not stuck."""
        self.set_gauge(LAST_PROGRESS, time.time())

    @abstractmethod
    def report(self, metrics: dict[str, Any], pointer: str | None = None) -> None:
        """Reports metrics to the engine; every rank must call this equally often.

        `pointer` is the folder, below the engine's own, that points to a checkpoint of these metrics.
        """

    @abstractmethod
    def reported_pointers(self) -> set[str] | None:
        """Returns the pointers that the engine keeps; None if the engine keeps none. Called by the main process."""

    @abstractmethod
    def stoppable(self) -> AbstractContextManager[None]:
        """Defers stop requests while the block runs, for a last checkpoint; elsewhere one ends the process at once.

        Every rank enters the block. A block that raises StoppedError has handled the request itself.
        """

    @abstractmethod
    def stop_requested(self) -> bool:
        """Returns True if this rank was requested to end training; cheap enough to call twice a second."""

    @abstractmethod
    def regroup_reason(self) -> str | None:
        """Returns why another worker group continues after a requested end, else None. Called by the main process."""

    def restart_reason(self) -> str | None:
        """Returns why these workers follow others of the attempt; None if they are the first, or it is not known."""
        return None

    @cached_property
    def group(self) -> str:
        """A unique name of this worker group, equal on all ranks; all must read it at the same point."""
        name: str = self.broadcast(lambda: uuid.uuid4().hex[:8], "naming the worker group")
        return name

    def gather(self, item: Any, what: str) -> list[Any]:
        """Returns every rank's item, in the order of ranks, on every rank; `what` as in `barrier`."""
        if self.world_size == 1:
            return [item]
        self._wait(what)
        items: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(items, item)
        return items

    @contextlib.contextmanager
    def failing_together(self, what: str) -> Iterator[None]:
        """Runs a block on every rank; raises the error of the first failed rank on all; `what` as in `barrier`."""
        failed: RayscribeError | None = None
        try:
            yield
        except RayscribeError as error:
            failed = error
        for outcome in self.gather(failed, what):
            if outcome is not None:
                raise outcome

    def broadcast(self, make: Callable[[], Any], what: str) -> Any:
        """Returns the result of `make` on rank 0, on every rank; `what` as in `barrier`.

        If `make` raises, every rank raises its error.
        """
        outcome: list[Any] = [None]
        if self.is_main_process:
            try:
                outcome = [(True, make())]
            except Exception as error:
                outcome = [(False, error)]
        if self.world_size > 1:
            self._wait(what)
            torch.distributed.broadcast_object_list(outcome, src=0)
        made, value = outcome[0]
        if not made:
            raise value
        return value

    def barrier(self, what: str) -> None:
        """Waits until every rank is here.

        Args:
            what: Name of the step, for the line that names missing ranks if the wait is long.
        """
        if self.world_size > 1:
            self._wait(what)
            # The process that holds the store may end right after this call.
            torch.distributed.barrier()

    def _wait(self, what: str) -> None:
        open_logged_barrier(self.rank, self.world_size, self.show).wait(what)


def refuse_unavailable(backend: str) -> None:
    """Refuses a process group backend that this machine's torch does not have.

    Raises:
        ConfigError: names the backend.
    """
    for name in (part.rpartition(":")[2] for part in backend.split(",")):
        if not torch.distributed.is_backend_available(name):
            raise ConfigError(
                f"scaling.backend: {backend}: torch {torch.__version__} has no backend {name}; set it to auto"
            )


@dataclass(frozen=True)
class LocalSession(Session):
    """A process that torchrun started, or a single process."""

    @classmethod
    def of_this_process(cls, backend: str = "auto") -> Self:
        """Reads torchrun's variables, and joins the process group; without the variables the process is alone.

        Args:
            backend: Backend of the process group, see `scaling_part`; only the first call uses it.

        Raises:
            ConfigError: this torch does not have the backend.
        """
        rank, world_size, local_rank = (int(os.environ.get(*item)) for item in TORCHRUN_VARIABLES)
        if world_size > 1 and not torch.distributed.is_initialized():
            if torch.cuda.is_available():
                torch.cuda.set_device(local_rank)
            if backend == "auto":
                # Both: nccl for tensors on a GPU, and gloo for the objects that this class gathers.
                backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            refuse_unavailable(backend)
            torch.distributed.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
        return cls(rank, world_size, local_rank)

    @property
    def node(self) -> str:
        return os.environ.get("GROUP_RANK", "0")

    def show(self, event: Event) -> None:
        if self.is_main_process:
            show(event)
        elif (line := line_of(event)) is not None:
            print(line, flush=True)

    def set_gauge(self, gauge: Gauge, value: float, **labels: str) -> None:
        """Does nothing: there is no monitoring without Ray."""

    def report(self, metrics: dict[str, Any], pointer: str | None = None) -> None:
        """Does nothing: there is no engine to report to."""

    def reported_pointers(self) -> set[str] | None:
        return None

    def stoppable(self) -> AbstractContextManager[None]:
        return STOP_SIGNAL.deferred()

    def stop_requested(self) -> bool:
        return STOP_SIGNAL.received

    def regroup_reason(self) -> str | None:
        return None
