"""Measures the time spent on parts of training, without waiting for a GPU.

Times are those of this process, except for work of a GPU: how long it was idle while the next batch was read, and how
long a step's gradients were exchanged after all were computed. Both are read from events that have passed.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer

_NANOSECONDS = 1e-9


class StepPart(StrEnum):
    """The measured parts of training; the rest of a step is computing."""

    DATA = "data"
    COMMUNICATION = "communication"
    CHECKPOINT = "checkpoint"
    SCORING = "scoring"


class Spent(NamedTuple):
    """Seconds between two calls of `StepTimes.take`.

    Attributes:
        steps: Training, without scores and checkpoints.
        data: Time without computing, because the batch had not been read.
        communication: Time waiting for other ranks, to agree on the number of labels that the loss is divided by.
    """

    steps: float
    data: float
    communication: float


class StepTimes:
    """Adds up the time that one rank spends on each part."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._since = clock, clock()
        self._seconds: Counter[StepPart] = Counter()
        # Open parts: start, and time spent on nested parts.
        self._open: list[tuple[StepPart, float, float]] = []
        self._reads: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def begin(self, part: StepPart) -> None:
        self._open.append((part, self._clock(), 0.0))

    def end(self) -> float:
        """Ends the part that was begun last; returns its seconds, including nested parts."""
        part, since, within = self._open.pop()
        seconds = self._clock() - since
        self._seconds[part] += seconds - within  # type: ignore[assignment]
        if self._open:
            outer, began, inner = self._open[-1]
            self._open[-1] = outer, began, inner + seconds
        return seconds

    @contextmanager
    def spent_on(self, part: StepPart) -> Iterator[None]:
        """Counts the time of the block for a part."""
        self.begin(part)
        yield
        self.end()

    @contextmanager
    def reading_ahead(self) -> Iterator[None]:
        """Measures reading the next batch while the GPU works; counts only the time that the GPU is idle."""
        if not torch.cuda.is_available():
            with self.spent_on(StepPart.DATA):
                yield
            return
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        yield
        after.record()
        self._reads.append((before, after))

    def take(self) -> Spent:
        """Returns the times since the last call."""
        now, seconds = self._clock(), self._seconds
        # The steps of a line of the log are completed, since it has their loss.
        while self._reads and self._reads[0][1].query():
            before, after = self._reads.popleft()
            # Both are in the GPU's single stream, where the second passes when it was recorded or all earlier work is
            # done.
            seconds[StepPart.DATA] += before.elapsed_time(after) / 1000
        steps = now - self._since - seconds[StepPart.CHECKPOINT] - seconds[StepPart.SCORING]
        spent = Spent(steps, seconds[StepPart.DATA], seconds[StepPart.COMMUNICATION])
        self._since = now
        seconds.clear()
        return spent


class GradientExchange:
    """Time that ranks take to exchange gradients, as measured by DDP; other strategies have no such timer."""

    def __init__(self, trainer: Trainer):
        self._trainer = trainer

    def sample(self, every: int) -> None:
        """Makes DDP time one of every `every` steps."""
        if isinstance(self._trainer.model_wrapped, DistributedDataParallel):
            self._trainer.model_wrapped._set_ddp_runtime_logging_sample_rate(every)

    @property
    def seconds(self) -> float | None:
        """Seconds in the last timed step, beyond computing the gradients.

        None: not known; 0.0 on one rank, which exchanges nothing.
        """
        if self._trainer.args.world_size == 1:
            return 0.0
        if not isinstance(self._trainer.model_wrapped, DistributedDataParallel):
            return None
        timed = self._trainer.model_wrapped._get_ddp_logging_data()
        took, overlap = (timed.get(f"backward_{name}_time") for name in ("comm", "compute_comm_overlap"))
        return None if took is None or overlap is None else max(0, int(took) - int(overlap)) * _NANOSECONDS
