"""Which prepared clips are trained on, and whether those of an evaluation split can be scored. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trainers.data.batch_plan import Selection
from trainers.errors import DataError


@dataclass(frozen=True)
class TrainingRows:
    """The clips that are trained on, and those that are not.

    Attributes:
        selection: What the batch plan takes.
        left_out: id and reason of each other clip.
    """

    selection: Selection
    left_out: list[dict[str, str]]


def select_training(index: pa.Table, *, min_duration_s: float, max_duration_s: float, context_s: float) -> TrainingRows:
    """Leaves out clips that are too short or too long, and those without a transcript.

    Args:
        index: A prepared set's index.
        min_duration_s: Shortest clip, seconds.
        max_duration_s: Longest clip, seconds.
        context_s: Longest input of the model, seconds.

    Raises:
        DataError: nothing is left.
    """
    durations_s = index["duration_s"].to_numpy()
    longest_s = min(max_duration_s, context_s)
    short, long = durations_s < min_duration_s, durations_s > longest_s
    silent = np.array([not text for text in index["text"].to_pylist()], dtype=bool)
    reasons = (
        (short, f"shorter than data.min_duration_s {min_duration_s:g} s"),
        (
            long,
            f"longer than {longest_s:g} s ({'data.max_duration_s' if max_duration_s <= context_s else 'the model'})",
        ),
        (silent & ~short & ~long, "empty transcript"),
    )
    ids = index["id"]
    left_out = [
        {"id": ids[int(row)].as_py(), "reason": reason} for mask, reason in reasons for row in np.flatnonzero(mask)
    ]
    rows = np.flatnonzero(~(short | long | silent))
    if not len(rows):
        counts = ", ".join(f"{int(mask.sum())} {reason}" for mask, reason in reasons if mask.any())
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
