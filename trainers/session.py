"""A rank's place among the others, and its voice: under Ray Train, under torchrun, or alone.

The training core asks for nothing else of its surroundings, so that the same code runs with and without Ray.
"""

import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed
import transformers

# A rank may prepare a large set, or bring a large checkpoint home, while the others wait.
LONGEST_WAIT = timedelta(hours=12)
TORCHRUN_VARIABLES = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


@dataclass(frozen=True)
class Session(ABC):
    """One of `world_size` processes that train together.

    Attributes:
        rank: This process, 0 … world_size − 1.
        world_size: Number of processes.
        local_rank: This process among those of its node.
    """

    rank: int
    world_size: int
    local_rank: int

    @property
    def leads(self) -> bool:
        """Whether this rank writes for all."""
        return self.rank == 0

    @abstractmethod
    def say(self, line: str) -> None:
        """Shows a line to the person who waits; only the leading rank's are shown."""

    @abstractmethod
    def report(self, metrics: dict[str, float]) -> None:
        """Gives numbers to the engine; every rank calls it equally often."""

    def gather(self, item: Any) -> list[Any]:
        """Every rank's item, in the order of ranks, on every rank."""
        if self.world_size == 1:
            return [item]
        items: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(items, item)
        return items

    def from_leader(self, make: Callable[[], Any]) -> Any:
        """What `make` returns on rank 0, on every rank. If it raises there, every rank raises the same."""
        outcome: list[Any] = [None]
        if self.leads:
            try:
                outcome = [(True, make())]
            except Exception as error:
                outcome = [(False, error)]
        if self.world_size > 1:
            torch.distributed.broadcast_object_list(outcome, src=0)
        made, value = outcome[0]
        if not made:
            raise value
        return value

    def barrier(self) -> None:
        """Waits until every rank is here."""
        if self.world_size > 1:
            torch.distributed.barrier()


@dataclass(frozen=True)
class RaySession(Session):
    """A worker of a Ray TorchTrainer; its lines travel to the driver through an actor."""

    lines: Any = None

    @classmethod
    def of_this_worker(cls, lines: Any) -> "RaySession":
        """The session of the calling worker.

        Args:
            lines: Handle of the actor that `cluster.lines_of_workers` gives.
        """
        import ray.train  # noqa: PLC0415

        context = ray.train.get_context()
        return cls(context.get_world_rank(), context.get_world_size(), context.get_local_rank(), lines)

    def say(self, line: str) -> None:
        """Sends the line to the driver, which prints it once."""
        if self.leads:
            self.lines.put.remote(line)

    def report(self, metrics: dict[str, float]) -> None:
        """Gives the numbers to Ray Train, for its dashboard and its Result."""
        import ray.train  # noqa: PLC0415

        ray.train.report(metrics)


@dataclass(frozen=True)
class LoneSession(Session):
    """A process that torchrun started, or the only one."""

    @classmethod
    def of_this_process(cls) -> "LoneSession":
        """Reads torchrun's variables, and joins its ranks; without them the process is alone."""
        rank, world_size, local_rank = (int(os.environ.get(*item)) for item in TORCHRUN_VARIABLES)
        if world_size > 1 and not torch.distributed.is_initialized():
            if torch.cuda.is_available():
                torch.cuda.set_device(local_rank)
            # Both: tensors of a GPU over nccl, and what this class gathers over gloo. One rank prepares while the
            # others wait, which takes longer than the default ten minutes.
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            torch.distributed.init_process_group(backend, timeout=LONGEST_WAIT)
        return cls(rank, world_size, local_rank)

    def say(self, line: str) -> None:
        """Prints the line."""
        if self.leads:
            print(line, flush=True)

    def report(self, metrics: dict[str, float]) -> None:
        """Nobody else is to be told."""


def run_on_worker(run: Callable[[Any, Session], None], loop_config: dict[str, Any]) -> None:
    """Runs in a Ray Train worker; the driver sees at once what went wrong, which Ray tells after its last retry."""
    session = RaySession.of_this_worker(loop_config["lines"])
    try:
        run(loop_config["order"], session)
    except Exception as error:
        session.say(f"worker failed: {type(error).__name__}: {error}")
        raise


def be_quiet() -> None:
    """Leaves one voice: ours."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
