"""Rank, world size and reports of a process under torchrun or on its own. For Ray, see `ray_workers`.

The training core uses nothing else of its environment, so that the same code runs with and without Ray.
"""

import contextlib
import itertools
import json
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Self

import torch.distributed
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from trainers.config.wording import format_duration
from trainers.distributed.console import Event, show
from trainers.distributed.console.plain_lines import line_of
from trainers.distributed.gauges import LAST_PROGRESS, Gauge
from trainers.distributed.signals import STOP_SIGNAL
from trainers.errors import ConfigError, LostWorkerError, RayscribeError

# A rank may prepare a large set, or download a large checkpoint, while the others wait.
LONGEST_WAIT = timedelta(hours=12)
# Timeout of collectives in training, where ranks only compute; a longer one means that a rank hangs.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
# Seconds before the first line about a wait; the interval doubles up to the second value.
FIRST_LINE_S, BETWEEN_LINES_S = 60.0, 600.0
# Seconds between two polls; doubles up to the second value, too.
FIRST_LOOK_S, BETWEEN_LOOKS_S = 0.001, 0.25
_SHOWN_RANKS = 10
TORCHRUN_VARIABLES = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


class LoggedBarrier:
    """The barriers of all ranks of a process group, called in the same order on each.

    They log which ranks they wait for, since torch's collectives are silent. Each rank writes its position to the
    process group's store. Ranks that arrive early poll the store, and enter a collective only once all ranks have
    arrived, so that the collective returns at once.

    `store` is a torch.distributed.Store of all ranks; `print_line` must reach the user from any rank.
    """

    def __init__(self, rank: int, world_size: int, print_line: Callable[[str], None], store: Any):
        self._rank, self._world_size, self._print_line, self._store = rank, world_size, print_line, store
        self._numbers = itertools.count(1)

    def wait(self, what: str) -> None:
        """Waits until every rank has arrived; `what` describes the step in lines about a long wait.

        Raises:
            LostWorkerError: some ranks have not arrived within LONGEST_WAIT.
        """
        number = next(self._numbers)
        self._store.set(f"at/{self._rank}", json.dumps([number, what]))
        if self._store.add(f"came/{number}", 1) == self._world_size:
            # Every rank has arrived here, so all have left the previous barrier.
            for key in (f"came/{number - 1}", f"all/{number - 1}"):
                self._store.delete_key(key)
            self._store.set(f"all/{number}", "1")
            return
        self._wait(number, what)

    def _wait(self, number: int, what: str) -> None:
        began, look_s, line_s = time.monotonic(), FIRST_LOOK_S, FIRST_LINE_S
        while not self._store.check([f"all/{number}"]):
            waited_s = time.monotonic() - began
            if waited_s > LONGEST_WAIT.total_seconds():
                raise LostWorkerError(self._line(number, what, waited_s))
            if waited_s >= line_s:
                line_s += min(line_s, BETWEEN_LINES_S)
                # Only the first waiting rank prints.
                if not any(self._place_of(rank)[0] >= number for rank in range(self._rank)):
                    self._print_line(self._line(number, what, waited_s))
            time.sleep(look_s)
            look_s = min(2 * look_s, BETWEEN_LOOKS_S)

    def _line(self, number: int, what: str, waited_s: float) -> str:
        places = {rank: self._place_of(rank) for rank in range(self._world_size)}
        away = [(rank, place) for rank, (reached, place) in places.items() if reached < number]
        shown = ", ".join(f"rank {rank} (last: {place})" for rank, place in away[:_SHOWN_RANKS])
        more = f" and {len(away) - _SHOWN_RANKS} more" if len(away) > _SHOWN_RANKS else ""
        return f"{what}: {format_duration(waited_s)} of waiting for {shown}{more}, of {self._world_size} ranks"

    def _place_of(self, rank: int) -> tuple[int, str]:
        key = f"at/{rank}"
        if not self._store.check([key]):
            return 0, "its start"
        number, what = json.loads(self._store.get(key))
        return number, what


# The store of the process group, and the barrier that uses it.
_opened: tuple[Any, LoggedBarrier] | None = None


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
        """Sets a gauge of this rank, without blocking; `labels` are those in addition to run, attempt and rank."""

    def set_gauge_from_main(self, gauge: Gauge, value: float, **labels: str) -> None:
        if self.is_main_process:
            self.set_gauge(gauge, value, **labels)

    def record_progress(self) -> None:
        """Sets the gauge that shows that this rank makes progress."""
        self.set_gauge(LAST_PROGRESS, time.time())

    @abstractmethod
    def report(self, metrics: dict[str, Any], pointer: str | None = None) -> None:
        """Reports metrics to the engine; every rank must call this equally often.

        `pointer` is a folder, below the engine's own, that points to the checkpoint with these metrics.
        """

    @abstractmethod
    def reported_pointers(self) -> set[str] | None:
        """Returns the pointers that the engine keeps; None if it stores no pointers. Called by the main process."""

    @abstractmethod
    def stoppable(self) -> AbstractContextManager[None]:
        """Defers stop requests while the block runs, for a last checkpoint; elsewhere they end the process immediately.

        Every rank enters the block. A block that raises StoppedError has handled the request itself.
        """

    @abstractmethod
    def stop_requested(self) -> bool:
        """Returns True if this rank was requested to end training; cheap enough to call twice a second."""

    @abstractmethod
    def regroup_reason(self) -> str | None:
        """Returns why another group continues after a requested end; None if none does. Called by the main process."""

    def restart_reason(self) -> str | None:
        """Returns why these workers follow others of the attempt; None if they are the first or it is not known."""
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
        """Runs a block on every rank; if some fail, raises the lowest rank's error on all. `what` as in `barrier`."""
        failed: RayscribeError | None = None
        try:
            yield
        except RayscribeError as error:
            failed = error
        for outcome in self.gather(failed, what):
            if outcome is not None:
                raise outcome

    def broadcast(self, make: Callable[[], Any], what: str) -> Any:
        """Returns the result of `make` on rank 0, or raises its error, on every rank; `what` as in `barrier`."""
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
        """Waits until every rank has arrived; if it takes long, prints the step `what` and the missing ranks."""
        if self.world_size > 1:
            self._wait(what)
            # The process that holds the store may end right after this call.
            torch.distributed.barrier()

    def _wait(self, what: str) -> None:
        global _opened  # noqa: PLW0603 -- one for each process group, like torch's own state
        first: Any = _get_default_store()
        if _opened is None or _opened[0] is not first:
            # A separate connection, since another thread may block on the first one.
            store = PrefixStore("rayscribe-barriers", first.clone())
            _opened = first, LoggedBarrier(self.rank, self.world_size, self.show, store)
        _opened[1].wait(what)


def refuse_unavailable(backend: str) -> None:
    """Raises ConfigError for a process group backend that this machine's torch does not have."""
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
        """Reads torchrun's variables and joins the process group; without the variables, the world size is 1.

        Only the first call uses `backend`, see `scaling_part`. Raises ConfigError if this torch does not have it.
        """
        rank, world_size, local_rank = (int(os.environ.get(*item)) for item in TORCHRUN_VARIABLES)
        if world_size > 1 and not torch.distributed.is_initialized():
            if torch.cuda.is_available():
                torch.cuda.set_device(local_rank)
            if backend == "auto":
                # nccl for tensors on a GPU, and gloo for the objects that this class gathers.
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
        """Does nothing, since there is no monitoring without Ray."""

    def report(self, metrics: dict[str, Any], pointer: str | None = None) -> None:
        """Does nothing, since there is no engine to report to."""

    def reported_pointers(self) -> set[str] | None:
        return None

    def stoppable(self) -> AbstractContextManager[None]:
        return STOP_SIGNAL.deferred()

    def stop_requested(self) -> bool:
        return STOP_SIGNAL.received

    def regroup_reason(self) -> str | None:
        return None
