"""Gauges of a rank's training, see docs/monitoring.md."""

from typing import Any

import numpy as np
from transformers import TrainerCallback

from trainers.data.batch_plan import BatchPlan
from trainers.distributed import gauges
from trainers.distributed.session import Session
from trainers.training.trainer.step_times import GradientExchange, Spent, StepPart, StepTimes


class StepGauges(TrainerCallback):
    """Sets the progress gauge after each step, and the others with each line of the log. Must be the last callback."""

    def __init__(
        self, session: Session, times: StepTimes, exchange: GradientExchange, plan: BatchPlan, durations_s: Any
    ):
        self._session, self._times, self._exchange = session, times, exchange
        self._plan, self._durations_s = plan, durations_s
        # The steps of the last line of the log, and of the last checkpoint.
        self._logged = self._saved = 0
        # Since training began, in seconds.
        self._trained = self._waited = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._logged = self._saved = state.global_step
        self._times.take()
        self._exchange.sample(args.logging_steps)
        self._session.record_progress()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.record_progress()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sets how long training was blocked by this checkpoint, divided by the steps since the last checkpoint."""
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
        """Sets the measurements since the last line of the log; ignores lines with only a score."""
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
        # A rank without utterances gets a filler.
        padded_s = sum(max(1, len(rows)) * edge_s for rows, edge_s in passes)
        rows = np.concatenate([rows for rows, _ in passes])
        audio_s, seconds = float(self._durations_s[rows].sum()), max(seconds, 1e-9)
        self._session.set_gauge(gauges.CLIPS, len(rows) / seconds)
        self._session.set_gauge(gauges.AUDIO, audio_s / seconds)
        self._session.set_gauge(gauges.PADDING, max(0.0, 1 - audio_s / padded_s))
