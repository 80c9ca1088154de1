"""What a worker shows to who watches the cluster: gauges, which Ray exports to Prometheus as `ray_<name>`.

All are gauges: Ray stops exporting a gauge seconds after its process has ended, while it keeps counters of processes
that are long gone. So there are series of running attempts only. Docs: docs/monitoring.md.
"""

from enum import Enum


class Gauge(Enum):
    """A number of one rank, with what it means, and labels that it has besides run, attempt and rank."""

    LAST_PROGRESS = "last_progress_timestamp_seconds", "When the rank last completed a step or a batch of a score."
    PROGRESS = "train_progress_ratio", "Steps that are done, of the run's last one."
    LOSS = "train_loss", "Mean loss since the last line of the log, per label, in nats. Rank 0."
    CLIPS = "train_clips_per_second", "Utterances that the rank trained on, per second of training."
    AUDIO = "train_audio_seconds_per_second", "Seconds of audio that the rank trained on, per second of training."
    PADDING = "train_padding_ratio", "Part of the rank's input that was padding."
    STEP_TIME = "train_step_seconds", "What one step took, by what it was spent on.", "part"
    WER = "wer_ratio", "Word error rate of the last score. Rank 0.", "split"
    CER = "cer_ratio", "Character error rate of the last score. Rank 0.", "split"

    def __init__(self, suffix: str, meaning: str, *labels: str):
        self.full_name = f"rayscribe_{suffix}"
        self.meaning, self.labels = meaning, labels
