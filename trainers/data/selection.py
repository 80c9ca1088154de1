"""Which prepared clips are trained on, and whether those of an evaluation split can be scored. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainers.config.schema import DataPart
from trainers.data.batch_plan import Selection
from trainers.errors import DataError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TrainingRows:
    """The clips that are trained on, and those that are not.

    Attributes:
        selection: What the batch plan takes.
        left_out: id and reason of each other clip.
    """

    selection: Selection
    left_out: list[dict[str, str]]


def reasons_to_leave_out(
    durations_s: FloatArray, texts: Sequence[str], data: DataPart, context_s: float
) -> list[tuple[str, BoolArray]]:
    """Why clips are not trained on: too short, too long, or without a transcript.

    Args:
        durations_s: Duration of each clip, seconds; NaN, which is not known, is neither short nor long.
        texts: Transcript of each clip.
        data: The config's data part.
        context_s: Longest input of the model, seconds.

    Returns:
        Reasons, and of each a mask of the clips that it concerns; a clip has one reason at most.
    """
    longest_s = min(data.max_duration_s, context_s)
    bound = "data.max_duration_s" if data.max_duration_s <= context_s else "the model"
    short, long = durations_s < data.min_duration_s, durations_s > longest_s
    silent = np.array([not text for text in texts], dtype=bool)
    return [
        (f"shorter than data.min_duration_s {data.min_duration_s:g} s", short),
        (f"longer than {longest_s:g} s ({bound})", long),
        ("empty transcript", silent & ~short & ~long),
    ]


def select_training(index: pa.Table, data: DataPart, context_s: float) -> TrainingRows:
    """Leaves out clips by `reasons_to_leave_out`.

    Args:
        index: A prepared set's index.
        data: The config's data part.
        context_s: Longest input of the model, seconds.

    Raises:
        DataError: nothing is left.
    """
    durations_s = index["duration_s"].to_numpy()
    reasons = reasons_to_leave_out(durations_s, index["text"].to_pylist(), data, context_s)
    ids = index["id"]
    left_out = [
        {"id": ids[int(row)].as_py(), "reason": reason} for reason, mask in reasons for row in np.flatnonzero(mask)
    ]
    rows = np.flatnonzero(~np.any([mask for _, mask in reasons], axis=0))
    if not len(rows):
        counts = ", ".join(f"{int(mask.sum())} {reason}" for reason, mask in reasons if mask.any())
        raise DataError(f"train: none of {len(index)} clips is left to train on: {counts}; widen the bounds")
    return TrainingRows(Selection(rows, durations_s[rows], index["shard"].to_numpy()[rows]), left_out)


def check_scorable(index: pa.Table, *, context_s: float, split: str) -> None:
    """Refuses clips that are longer than the model hears: cutting or dropping them would falsify the score.

    Raises:
        DataError: names their ids and durations.
    """
    durations_s = index["duration_s"].to_numpy()
    long = np.flatnonzero(durations_s > context_s)
    if len(long):
        names = _shown([f"{index['id'][int(row)].as_py()} ({durations_s[row]:.1f} s)" for row in long])
        raise DataError(
            f"{split}: {len(long)} clips are longer than the model's {context_s:g} s: {names}; cut them into shorter "
            f"utterances, or take a model with a longer context (model.max_context_s)"
        )
    if not any(text.split() for text in index["text"].to_pylist()):
        raise DataError(f"{split}: all {len(index)} transcripts are empty, so that no WER exists; transcribe them")


def _shown(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
