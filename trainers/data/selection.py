"""Selects the prepared clips to train on, and checks that those of an evaluation split can be scored. Pure."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_part import DataPart
from trainers.config.wording import counted
from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.augmentation import changed_lengths
from trainers.data.batch_plan import FloatArray, IntArray, Selection
from trainers.data.frame_count import FrameCount
from trainers.errors import DataError

# Maximum number of clips named in a message.
MAX_NAMED = 5
LONG_LABELS_FIX = "shorten or split these utterances, or leave them out of the score (data.too_long_eval: skip)"
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Bounds:
    """The limits of a model's input and output.

    Attributes:
        context_s: Longest input, seconds.
        label_tokens: Maximum number of label tokens of an utterance.
        frames: Counts the outputs of a clip, of which the model needs one per label token, and one more between equal
            tokens. None if the model has no such limit.
        fastest: The greatest speed at which clips are trained on; they have the fewest outputs then.
        least_samples: Shortest input, samples.
    """

    context_s: float
    label_tokens: int
    frames: FrameCount | None = None
    fastest: float = 1.0
    least_samples: int = 1

    def too_short(self, durations_s: FloatArray, speed: float = 1.0) -> BoolArray:
        """Returns True for clips too short for the model, by duration in seconds; False for unknown ones (NaN)."""
        samples = np.rint(np.nan_to_num(durations_s, nan=np.inf) * SAMPLING_RATE_HZ)
        short: BoolArray = changed_lengths(samples, speed) < self.least_samples
        return short

    @property
    def short_bound(self) -> str:
        """Describes a clip that is too short for the model."""
        return f"shorter than {self.least_samples / SAMPLING_RATE_HZ:g} s (the model)"

    def label_room(self, durations_s: FloatArray) -> FloatArray:
        """Returns the maximum number of label tokens of clips, by duration in seconds; no limit if unknown (NaN)."""
        if self.frames is None:
            return np.full(len(durations_s), float(self.label_tokens))
        known = ~np.isnan(durations_s)
        samples = np.rint(np.where(known, durations_s, 0) * SAMPLING_RATE_HZ)
        frames = self.frames(changed_lengths(samples, self.fastest))
        return np.where(known, np.minimum(frames, self.label_tokens), np.inf)

    @property
    def label_bound(self) -> str:
        """Describes a transcript that is too long for its clip."""
        if self.frames is None:
            return f"more than {self.label_tokens} label tokens (the model)"
        at = f" at speed {self.fastest:g} (augment)" if self.fastest > 1 else ""
        return f"more label tokens, and repeats of them, than the model gives outputs{at} (the model)"


@dataclass(frozen=True)
class TrainingRows:
    """The clips to train on, for the batch plan; and id and reason of each other clip."""

    selection: Selection
    left_out: list[dict[str, str]]


def reasons_to_leave_out(
    durations_s: FloatArray, label_sizes: IntArray, silent: BoolArray, data: DataPart, bounds: Bounds
) -> list[tuple[str, BoolArray]]:
    """Returns why clips are left out of training: too short, too long, or without a transcript.

    An unknown duration (NaN seconds) is neither short nor long. `label_sizes` are the clips' needs in terms of
    `Bounds.label_room`; a `silent` clip has an empty transcript.

    Returns:
        Reasons, each with a mask of the clips that it applies to; a clip has at most one reason.
    """
    longest_s = min(data.max_duration_s, bounds.context_s)
    bound = "data.max_duration_s" if data.max_duration_s <= bounds.context_s else "the model"
    short, long = durations_s < data.min_duration_s, durations_s > longest_s
    tiny = bounds.too_short(durations_s, bounds.fastest) & ~short
    silent = silent & ~short & ~tiny & ~long & (data.empty_text == "leave_out")
    wordy = (label_sizes > bounds.label_room(durations_s)) & ~short & ~tiny & ~long & ~silent
    return [
        (f"shorter than data.min_duration_s {data.min_duration_s:g} s", short),
        (bounds.short_bound, tiny),
        (f"longer than {longest_s:g} s ({bound})", long),
        ("empty transcript", silent),
        (bounds.label_bound, wordy),
    ]


def drawn_clips(ids: Sequence[str], share: float) -> IntArray:
    """Returns the positions of a share of clips, drawn by their ids; a larger share has those of a smaller one, too."""
    drawn = (int.from_bytes(hashlib.sha256(each.encode()).digest()[:8]) / 2**64 for each in ids)
    return np.array([row for row, number in enumerate(drawn) if number < share], np.int64)


def select_training(index: pa.Table, label_sizes: IntArray, data: DataPart, bounds: Bounds) -> TrainingRows:
    """Selects the clips of an index to train on; passes `label_sizes` to `reasons_to_leave_out`.

    Raises DataError if no clip is left.
    """
    durations_s = index["duration_s"].to_numpy()
    silent = pc.equal(pc.binary_length(index["text"]), 0).to_numpy()
    reasons = reasons_to_leave_out(durations_s, label_sizes, silent, data, bounds)
    ids = index["id"]
    left_out = [
        {"id": ids[int(row)].as_py(), "reason": reason} for reason, mask in reasons for row in np.flatnonzero(mask)
    ]
    rows = np.flatnonzero(~np.any([mask for _, mask in reasons], axis=0))
    if not len(rows):
        counts = ", ".join(f"{int(mask.sum())} {reason}" for reason, mask in reasons if mask.any())
        raise DataError(f"train: none of {len(index)} clips is left to train on: {counts}; widen the bounds")
    return TrainingRows(Selection(rows, durations_s[rows], index["shard"].to_numpy()[rows]), left_out)


def select_scored(index: pa.Table, label_lengths: IntArray, data: DataPart, bounds: Bounds, split: str) -> IntArray:
    """Selects the clips of an evaluation split to score: all that the model can take.

    Clips too short for the model have no hypothesis, and are left out; `data.too_long_eval: skip` leaves out longer
    ones.

    Returns:
        Rows of the index, int64, ascending.

    Raises:
        DataError: clips or transcripts are too long for the model and not skipped; or all transcripts are empty.
    """
    durations_s, ids = index["duration_s"].to_numpy(), index["id"]
    if data.too_long_eval == "refuse":
        refuse_long_clips(ids, durations_s, bounds.context_s, split)
        # On a GPU, labels that are too long would end the process during training.
        if long := long_labels(ids, label_lengths, bounds.label_tokens):
            raise DataError(f"{split}: {long}; {LONG_LABELS_FIX}")
    short = bounds.too_short(durations_s)
    rows = np.flatnonzero(~short & (durations_s <= bounds.context_s) & (label_lengths <= bounds.label_tokens))
    if not len(rows):
        raise DataError(
            f"{split}: none of {len(index)} clips fits into the model's {bounds.context_s:g} s and "
            f"{bounds.label_tokens} label tokens, {int(short.sum())} are {bounds.short_bound}; cut the recordings into "
            "utterances that do"
        )
    if not any(text.split() for text in index["text"].take(rows).to_pylist()):
        raise DataError(f"{split}: all {len(rows)} transcripts are empty, so that no WER exists; transcribe them")
    return rows


def long_labels(ids: pa.ChunkedArray, label_lengths: IntArray, most: int) -> str:
    """Returns how many transcripts exceed a model's label tokens, the first by id and size; "" if none does."""
    more = f"more label tokens than the model's {most}"
    return _longer(ids, label_lengths, most, "", ("transcript", f"has {more}", f"have {more}"))


def not_scored(index: pa.Table, scored: IntArray, bounds: Bounds) -> list[dict[str, str]]:
    """Returns id and reason of the clips that `select_scored` left out."""
    rows = np.setdiff1d(np.arange(len(index)), scored)
    short = bounds.too_short(index["duration_s"].to_numpy()[rows])
    reasons = np.where(short, bounds.short_bound, "longer than the model takes, or its transcript is")
    ids = index["id"].take(rows).to_pylist()
    return [{"id": name, "reason": str(reason)} for name, reason in zip(ids, reasons, strict=True)]


def refuse_long_clips(ids: pa.ChunkedArray, durations_s: FloatArray, context_s: float, split: str) -> None:
    """Refuses clips longer than the model's context, since truncating or dropping them would falsify the score.

    Raises DataError if there are such clips; the message has their ids and durations.
    """
    longer = f"longer than the model's {context_s:g} s"
    if long := _longer(ids, durations_s, context_s, " s", ("clip", f"is {longer}", f"are {longer}")):
        raise DataError(
            f"{split}: {long}; cut them into shorter utterances, or take a model with a longer context "
            "(model.max_context_s), or leave them out of the score (data.too_long_eval: skip)"
        )


def _longer(
    ids: pa.ChunkedArray, sizes: FloatArray | IntArray, most: float, unit: str, what: tuple[str, str, str]
) -> str:
    """Returns how many of `what`, see `counted`, exceed `most`, the first by id and size; "" if none does."""
    rows = np.flatnonzero(sizes > most)
    names = [f"{ids[int(row)].as_py()} ({round(sizes[row], 1)}{unit})" for row in rows[:MAX_NAMED]]
    more = ", …" if len(rows) > MAX_NAMED else ""
    return f"{counted(len(rows), *what)}: {', '.join(names)}{more}" if names else ""
