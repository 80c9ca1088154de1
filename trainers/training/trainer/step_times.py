"""Measures the time spent on parts of training, without waiting for a GPU, and shows it (see docs/monitoring.md).

Times are those of this process, except for two times of a GPU: how long it was idle while the next batch was read, and
how long gradients were still exchanged after all were computed. Both are read from events that have passed.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback

from trainers.data.batch_plan import BatchPlan
from trainers.distributed import gauges
from trainers.distributed.session import Session

_NANOSECONDS = 1e-9


class StepPart(StrEnum):
    """The measured parts of training; the rest of a step is computing."""

    DATA = "data"
    COMMUNICATION = "communication"
    CHECKPOINT = "checkpoint"
    SCORING = "scoring"


class Spent(NamedTuple):
    """Seconds between two calls of `StepTimes.take`."""

    # Time of training, without scores and checkpoints.
    steps: float
    # Time without computing, since the batch had not been read yet.
    data: float
    # Time of waiting for other ranks, to agree on the number of labels by which the loss is divided.
    communication: float


class StepTimes:
    """Sums the time that one rank spends on each part."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._since = clock, clock()
        self._seconds: Counter[StepPart] = Counter()
        self._reads: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def begin(self, part: StepPart) -> None:
        """Begins a part, which must end before another part begins."""
        self._part, self._began = part, self._clock()

    def end(self) -> float:
        """Ends the part; returns its seconds."""
        seconds = self._clock() - self._began
        self._seconds[self._part] += seconds  # type: ignore[assignment]
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
        # Called when a loss is logged, so that the steps before it are completed.
        while self._reads and self._reads[0][1].query():
            before, after = self._reads.popleft()
            # Both are in the GPU's single stream. The second event passes when it is recorded, or when all earlier work
            # is done, if that is later.
            seconds[StepPart.DATA] += before.elapsed_time(after) / 1000
        steps = now - self._since - seconds[StepPart.CHECKPOINT] - seconds[StepPart.SCORING]
        spent = Spent(steps, seconds[StepPart.DATA], seconds[StepPart.COMMUNICATION])
        self._since = now
        seconds.clear()
        return spent


class GradientExchange:
    """The time that ranks take to exchange gradients, as measured by DDP; other strategies do not measure it."""

    def __init__(self, trainer: Trainer):
        self._trainer = trainer

    def sample(self, every: int) -> None:
        """Makes DDP measure one of every `every` steps."""
        if isinstance(self._trainer.model_wrapped, DistributedDataParallel):
            self._trainer.model_wrapped._set_ddp_runtime_logging_sample_rate(every)

    @property
    def seconds(self) -> float | None:
        """Time in the last measured step, beyond computing the gradients, in seconds; None if not known."""
        if self._trainer.args.world_size == 1:
            return 0.0
        if not isinstance(self._trainer.model_wrapped, DistributedDataParallel):
            return None
        timed = self._trainer.model_wrapped._get_ddp_logging_data()
        took, overlap = (timed.get(f"backward_{name}_time") for name in ("comm", "compute_comm_overlap"))
        return None if took is None or overlap is None else max(0, int(took) - int(overlap)) * _NANOSECONDS


class StepGauges(TrainerCallback):
    """Sets the progress gauge after each step, and other gauges with each logged loss. Must be the last callback."""

    def __init__(
        self, session: Session, times: StepTimes, exchange: GradientExchange, plan: BatchPlan, durations_s: Any
    ):
        self._session, self._times, self._exchange = session, times, exchange
        self._plan, self._durations_s = plan, durations_s
        # The steps of the last logged loss, and of the last checkpoint.
        self._logged = self._saved = 0
        # Seconds since training began: of steps, and of waiting for data.
        self._trained = self._waited = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._logged = self._saved = state.global_step
        self._times.take()
        self._exchange.sample(args.logging_steps)
        self._session.record_progress()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.record_progress()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sets the time for which this checkpoint blocked training, divided by the steps since the last checkpoint."""
        steps = max(1, state.global_step - self._saved)
        self._session.set_gauge(gauges.STEP_TIME, self._times.end() / steps, part=StepPart.CHECKPOINT)
        self._session.record_progress()
        self._saved = state.global_step

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Prints the share of step time that was spent waiting for data, averaged over ranks. All ranks call this."""
        self._take()
        shares = self._session.gather(self._waited / max(self._trained, 1e-9), "adding up the time of steps")
        self._session.show_from_main(f"train: {sum(shares) / len(shares):.2%} of step time was spent waiting for data")

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sets the measurements since the last logged loss; ignores logs with only a score."""
        logs: dict[str, float] = kwargs["logs"]
        steps = range(self._logged, state.global_step)
        if "loss" not in logs or not steps:
            return
        self._logged = state.global_step
        self._session.set_gauge_from_main(gauges.LOSS, logs["loss"])
        self._session.set_gauge_from_main(gauges.PROGRESS, state.global_step / state.max_steps)
        spent, exchange_s = self._take(), self._exchange.seconds
        self._show_input(steps, spent.steps)
        data = spent.data / len(steps)
        shown = {"data": data, "compute": spent.steps / len(steps) - data}
        if exchange_s is not None:
            shown["communication"] = spent.communication / len(steps) + exchange_s
            shown["compute"] = max(0.0, shown["compute"] - shown["communication"])
        for part, seconds in shown.items():
            self._session.set_gauge(gauges.STEP_TIME, seconds, part=part)

    def _take(self) -> Spent:
        spent = self._times.take()
        self._trained += spent.steps
        self._waited += spent.data
        return spent

    def _show_input(self, steps: range, seconds: float) -> None:
        """Sets the speed of this rank, and the share of padding in its input."""
        passes = [item for step in steps for item in self._plan.micro_batches(step, self._session.rank)]
        # A pass without utterances has a filler.
        padded_s = sum(max(1, len(rows)) * edge_s for rows, edge_s in passes)
        rows = np.concatenate([rows for rows, _ in passes])
        audio_s, seconds = float(self._durations_s[rows].sum()), max(seconds, 1e-9)
        self._session.set_gauge(gauges.CLIPS, len(rows) / seconds)
        self._session.set_gauge(gauges.AUDIO, audio_s / seconds)
        self._session.set_gauge(gauges.PADDING, max(0.0, 1 - audio_s / padded_s))
