"""Rank and world size of a process, and how it reports; with torchrun or alone. On Ray, see `ray_workers`.

The training core needs nothing else from its environment, so that the same code runs with and without Ray.
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
    """One of `world_size` processes that train together; `local_rank` counts those of its node."""

    rank: int
    world_size: int
    local_rank: int

    @property
    def is_main_process(self) -> bool:
        """Whether this rank writes for all."""
        return self.rank == 0

    @property
    @abstractmethod
    def node(self) -> str:
        """The name of this rank's node; nodes may share their disks and their temporary folder."""

    @abstractmethod
    def show(self, event: Event) -> None:
        """Shows an event, or a line, where the driver shows its own."""

    def show_from_main(self, event: Event) -> None:
        if self.is_main_process:
            self.show(event)

    @abstractmethod
    def set_gauge(self, gauge: Gauge, value: float, **labels: str) -> None:
        """Shows a number of this rank, in the gauge's unit, to who watches the cluster.

        It costs microseconds, and waits for nothing. `labels` are those besides run, attempt and rank.
        """

    def set_gauge_from_main(self, gauge: Gauge, value: float, **labels: str) -> None:
        if self.is_main_process:
            self.set_gauge(gauge, value, **labels)

    def record_progress(self) -> None:
        """Shows that this rank is not stuck."""
        self.set_gauge(LAST_PROGRESS, time.time())

    @abstractmethod
    def report(self, metrics: dict[str, Any], pointer: str | None = None) -> None:
        """Reports metrics to the engine; every rank calls it equally often.

        `pointer` is the folder below the engine's own that points to a checkpoint of these metrics.
        """

    @abstractmethod
    def reported_pointers(self) -> set[str] | None:
        """Pointers that the engine keeps; None where the engine keeps none. The main process calls it."""

    @abstractmethod
    def stoppable(self) -> AbstractContextManager[None]:
        """While the block runs, a request to stop waits for a last checkpoint; otherwise it ends the process at once.

        Every rank enters it. A block that raises StoppedError has handled the request itself.
        """

    @abstractmethod
    def stop_requested(self) -> bool:
        """Whether this rank was requested to end training; cheap enough to call twice a second."""

    @abstractmethod
    def regroup_reason(self) -> str | None:
        """Why other ranks go on where these were requested to end; None: none do. The main process calls it."""

    def restart_reason(self) -> str | None:
        """Why these workers follow others of the attempt; None: they do not, or it is not known."""
        return None

    @cached_property
    def group(self) -> str:
        """A name that only these ranks have, the same on each; all call it at the same point."""
        name: str = self.broadcast(lambda: uuid.uuid4().hex[:8], "naming the worker group")
        return name

    def gather(self, item: Any, what: str) -> list[Any]:
        """Every rank's item, in the order of ranks, on every rank; `what` as of `barrier`."""
        if self.world_size == 1:
            return [item]
        self._wait(what)
        items: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(items, item)
        return items

    @contextlib.contextmanager
    def failing_together(self, what: str) -> Iterator[None]:
        """A block of every rank; what fails on one, the first of them, is raised on all; `what` as of `barrier`."""
        failed: RayscribeError | None = None
        try:
            yield
        except RayscribeError as error:
            failed = error
        for outcome in self.gather(failed, what):
            if outcome is not None:
                raise outcome

    def broadcast(self, make: Callable[[], Any], what: str) -> Any:
        """What `make` returns on rank 0, on every rank; `what` as of `barrier`.

        If it raises there, every rank raises the same.
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
            what: What the ranks do here; a line names it, and who is missing, where the wait is long.
        """
        if self.world_size > 1:
            self._wait(what)
            # The process that holds the store may end right after it.
            torch.distributed.barrier()

    def _wait(self, what: str) -> None:
        open_logged_barrier(self.rank, self.world_size, self.show).wait(what)


def refuse_unavailable(backend: str) -> None:
    """Refuses a backend of process groups that this machine's torch does not have.

    Raises:
        ConfigError: names it.
    """
    for name in (part.rpartition(":")[2] for part in backend.split(",")):
        if not torch.distributed.is_backend_available(name):
            raise ConfigError(
                f"scaling.backend: {backend}: torch {torch.__version__} has no backend {name}; set it to auto"
            )


@dataclass(frozen=True)
class LocalSession(Session):
    """A process that torchrun started, or the only one."""

    @classmethod
    def of_this_process(cls, backend: str = "auto") -> Self:
        """Reads torchrun's variables, and joins its ranks; without them the process is alone.

        Args:
            backend: What the ranks communicate by, see `scaling_part`; of the first call, which joins them.

        Raises:
            ConfigError: this torch has no such backend.
        """
        rank, world_size, local_rank = (int(os.environ.get(*item)) for item in TORCHRUN_VARIABLES)
        if world_size > 1 and not torch.distributed.is_initialized():
            if torch.cuda.is_available():
                torch.cuda.set_device(local_rank)
            if backend == "auto":
                # Both: tensors of a GPU over nccl, and what this class gathers over gloo.
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
        """Nobody watches."""

    def report(self, metrics: dict[str, Any], pointer: str | None = None) -> None:
        """There is no engine to report to."""

    def reported_pointers(self) -> set[str] | None:
        return None

    def stoppable(self) -> AbstractContextManager[None]:
        return STOP_SIGNAL.deferred()

    def stop_requested(self) -> bool:
        return STOP_SIGNAL.received

    def regroup_reason(self) -> str | None:
        return None
