"""Recognizes clips in batches of similar length, which are halved if they do not fit into memory."""

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch

from trainers.data.batch_plan import bucket_of
from trainers.distributed.root_cause import is_out_of_memory
from trainers.models.recognizer import Decoding, Recognition, Recognizer

Result = TypeVar("Result")


def batches_of(
    durations_s: np.ndarray, rows: np.ndarray, edges_s: Sequence[float] | None, *, to_longest: bool, batch_size: int
) -> list[tuple[np.ndarray, float | None]]:
    """Returns batches of clips, each of one bucket, with the length to which it is padded; the costliest first.

    `durations_s` has all clips, and `rows` the positions of those to recognize; for others see `ScoringOptions`.
    """
    known_edges_s = edges_s or tuple(np.unique(durations_s[rows]).tolist())
    buckets = bucket_of(durations_s[rows], known_edges_s)
    batches: list[tuple[np.ndarray, float | None]] = []
    for bucket in sorted(set(buckets.tolist()), reverse=True):
        members = rows[buckets == bucket]
        members = members[np.argsort(-durations_s[members], kind="stable")]
        edge_s = known_edges_s[bucket] if edges_s is not None and not to_longest else None
        for start in range(0, len(members), batch_size):
            batches.append((members[start : start + batch_size], edge_s))
    return batches


class BatchRecognizer:
    """A recognizer with the features of its input, both on its device."""

    def __init__(self, recognizer: Recognizer):
        self._recognizer = recognizer
        self._features = recognizer.new_features()

    def recognize(
        self,
        clips: Sequence[np.ndarray],
        labels: Sequence[Sequence[int]],
        edge_s: float | None,
        decoding: Decoding,
    ) -> list[Recognition]:
        """Recognizes a batch, see `Recognizer.recognize`; raises as `compute`."""
        recognizer = self._recognizer
        return self.compute(clips, labels, edge_s, lambda inputs, given: recognizer.recognize(inputs, given, decoding))

    def compute(
        self,
        clips: Sequence[np.ndarray],
        labels: Sequence[Sequence[int]],
        edge_s: float | None,
        function: Callable[[Mapping[str, torch.Tensor], Sequence[Sequence[int]]], list[Result]],
    ) -> list[Result]:
        """Returns the results of a function of inputs and labels for a batch; raises if one clip exceeds the memory.

        `clips` are int16 samples, `edge_s` as in `Features.inputs`.
        """
        try:
            device = self._recognizer.model.device
            given = [torch.from_numpy(clip).to(device) for clip in clips]
            inputs = self._features.to(device).inputs(given, edge_s)
            return function(self._recognizer.in_type_of_weights(inputs), labels)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if len(clips) == 1 or not is_out_of_memory(error):
                raise
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        half = len(clips) // 2
        return [
            *self.compute(clips[:half], labels[:half], edge_s, function),
            *self.compute(clips[half:], labels[half:], edge_s, function),
        ]
