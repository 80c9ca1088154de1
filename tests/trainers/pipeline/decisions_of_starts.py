"""Two starts of a run, and what is decided about the second."""

from trainers.config.schema import TrainConfig
from trainers.data.preparation import PrepareOptions
from trainers.pipeline.continuation import Continuation, decide
from trainers.run_folder.journal import Checkpoint, State

URL = "/data/runs/run"


def keys(wanted: TrainConfig) -> dict[str, str]:
    """Stands for the hashes of prepared sets: of the manifests, their columns, and what preparing does."""
    data = wanted.data
    made = (data.audio_column_name, data.text_column_name, PrepareOptions.of(data))
    return {split: repr((getattr(data, split), *made)) for split in ("train", "validation", "test")}


def started(first: TrainConfig, step: int = 4) -> State:
    """The state of a run that has a checkpoint."""
    begun = decide(URL, State(), None, first, keys(first))
    checkpoint = Checkpoint(f"checkpoint-{step}-a1-x", step, 1, {"eval_wer": 9.0}, "2026-01-01", {})
    return State(number=3, attempt=1, prepared=1, experiment=begun.experiment, checkpoints=(checkpoint,))


def again(state: State, before: TrainConfig, now: TrainConfig) -> Continuation:
    """The second start's decision."""
    return decide(URL, state, before.model_dump(mode="json"), now, keys(now))


def lengths(continuation: Continuation) -> list[tuple[float, str | None]]:
    """Amount and kind of each length."""
    return [(length.amount, length.extend) for length in continuation.lengths]
