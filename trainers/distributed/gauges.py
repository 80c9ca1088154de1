"""Gauges of a worker, which Ray exports to Prometheus as `ray_<name>`.

Ray stops exporting a gauge seconds after its process has ended, but keeps counters of processes that ended long ago.
With gauges alone, only running attempts have time series. See docs/monitoring.md.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Gauge:
    """A gauge of each rank: name, meaning, and labels in addition to run, attempt and rank."""

    full_name: str
    meaning: str
    labels: tuple[str, ...] = ()


LAST_PROGRESS = Gauge(
    "rayscribe_last_progress_timestamp_seconds", "When the rank last completed a step or a batch of a score."
)
PROGRESS = Gauge("rayscribe_train_progress_ratio", "Completed steps, as a fraction of all steps of the run.")
LOSS = Gauge("rayscribe_train_loss", "Mean loss per label since the last log line, in nats. Rank 0.")
CLIPS = Gauge("rayscribe_train_clips_per_second", "Utterances that the rank trained on, per second of training.")
AUDIO = Gauge(
    "rayscribe_train_audio_seconds_per_second", "Seconds of audio that the rank trained on, per second of training."
)
PADDING = Gauge("rayscribe_train_padding_ratio", "Fraction of the rank's input that was padding.")
STEP_TIME = Gauge("rayscribe_train_step_seconds", "Time that one step took, by part.", ("part",))


def error_rate(metric: str) -> Gauge:
    """Returns the gauge of an error rate that is always scored; 1 is 100%."""
    name = re.sub(r"\W", "_", metric, flags=re.ASCII)
    return Gauge(f"rayscribe_{name}_ratio", f"{metric.upper()} of the last score. Rank 0.", ("split",))
