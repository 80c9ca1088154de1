"""Loads one rank's part of each step: reads, augments and stacks the plan's utterances, and copies them ahead."""

import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.augmentation import Augmenter
from trainers.data.batch_plan import BatchPlan
from trainers.data.features import pad_samples
from trainers.data.prepared_set import ClipReader
from trainers.distributed.machine import end_with_parent
from trainers.models.labels import EmptiedLabels, Labels
from trainers.models.recognizer import IGNORED_LABEL, LabelCollator, Regularizer, Timestamps

# Number of steps ahead for which shards are fetched. If the complete set is shuffled, a step needs about as many shards
# as it has utterances. Within a window, a step needs few new shards, but the next window needs all of its shards.
PREFETCH_STEPS, PREFETCH_STEPS_WITHIN_WINDOWS = 4, 32


@dataclass(frozen=True)
class SampleReference:
    """One utterance of one forward pass, by its position in the index.

    Attributes:
        edge_s: Length in seconds to which it is padded.
        filler: True if it only keeps a rank in step with other ranks; all of its labels are ignored.
        epoch: Number of earlier passes over its source, in each of which augmentation draws new values.
        share: Weight in the step's regularizer; 0 if the utterance is not in its sample.
    """

    position: int
    edge_s: float
    filler: bool = False
    epoch: int = 0
    share: float = 0.0


class PlannedBatches(Sampler[list[SampleReference]]):
    """One rank's forward passes of one epoch, in the plan's order."""

    def __init__(
        self,
        plan: BatchPlan,
        rank: int,
        prefetch: Callable[[np.ndarray], None],
        first_step: int,
        regularizer: Regularizer | None = None,
    ):
        self._plan, self._rank, self._prefetch, self._first_step = plan, rank, prefetch, first_step
        self._sampled_fraction = regularizer.fraction if regularizer is not None else 0.0
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return self._plan.steps_per_epoch * self._plan.shape.accumulation

    def __iter__(self) -> Iterator[list[SampleReference]]:
        first = self._epoch * self._plan.steps_per_epoch
        end = first + self._plan.steps_per_epoch
        ahead = PREFETCH_STEPS if self._plan.window_shards is None else PREFETCH_STEPS_WITHIN_WINDOWS
        fetched = max(first, self._first_step)
        for step in range(first, end):
            for soon in range(fetched, min(step + ahead + 1, end)):
                self._prefetch(np.concatenate([rows for rows, _ in self._plan.micro_batches(soon, self._rank)]))
                fetched = soon + 1
            sample, batch = self._plan.sampled(step, self._sampled_fraction), self._plan.batch(step)
            occurrences = Counter(batch.rows.tolist())
            shares = {row: 1 / len(sample) / occurrences[row] for row in sample.tolist()}
            passes = self._plan.micro_batch_passes(step, self._rank)
            for (rows, edge_s), epochs in zip(self._plan.micro_batches(step, self._rank), passes, strict=True):
                yield [
                    SampleReference(row, edge_s, epoch=epoch, share=shares.get(row, 0.0))
                    for row, epoch in zip(rows.tolist(), epochs.tolist(), strict=True)
                ] or [SampleReference(int(batch.rows[0]), edge_s, filler=True, epoch=int(batch.passes[0]))]


class PlannedLoader(DataLoader[Any]):
    """A DataLoader that passes the epoch on to its batches, and whose processes end with their parent."""

    def __init__(self, dataset: Dataset[Any], **options: Any):
        super().__init__(dataset, worker_init_fn=_begin_process, **options)
        # Otherwise, if a fork server starts its processes, each of them would import torch again.
        multiprocessing.set_forkserver_preload([__name__])

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]

    def end(self) -> None:
        """Ends its processes. On garbage collection, torch would first wait for each of them, for up to 5 s."""
        if isinstance(self._iterator, _MultiProcessingDataLoaderIter):
            self._iterator._shutdown_workers()


def _begin_process(number: int) -> None:
    end_with_parent()


@dataclass(frozen=True)
class Clips(Dataset[dict[str, Any]]):
    """Stored clips with their labels; `emptied` has those of clips that are replaced by sounds without speech.

    `timestamps` are the ids of times in labels, which change with the speed of a clip; None if labels have no times.
    """

    reader: ClipReader
    labels: Labels
    augmenter: Augmenter | None = None
    emptied: EmptiedLabels | None = None
    timestamps: Timestamps | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, reference: SampleReference) -> dict[str, Any]:
        stored, labels = self.reader.read(reference.position), self.labels[reference.position]
        clip, masks = stored, None
        if self.augmenter is not None:
            clip = self.augmenter.change(stored, reference.position, reference.epoch)
            if self.timestamps is not None and len(clip) != len(stored):
                longest_s = len(clip) / SAMPLING_RATE_HZ
                labels = self.timestamps.rescaled(labels, len(clip) / len(stored), longest_s)
            if self.emptied is not None and self.augmenter.replaces(reference.position, reference.epoch):
                labels = self.emptied[reference.position]
            masks = self.augmenter.masks(len(clip), reference.position, reference.epoch)
        return {
            "clip": clip,
            "labels": [IGNORED_LABEL] * len(labels) if reference.filler else labels,
            "edge_s": reference.edge_s,
            "masks": masks,
            "share": reference.share,
        }


@dataclass(frozen=True)
class Collator:
    """Stacks clips and labels; features are computed later, on the device.

    Labels are padded to a multiple of `label_multiple`, for few different lengths, but to at most `label_tokens`.
    """

    collate_labels: LabelCollator
    label_multiple: int = 1
    label_tokens: int = 1
    on_cpu: bool = False

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns samples (B, T) int16, B sizes, edge_s, masks, shares, and the collated labels."""
        samples, sizes = pad_samples([item["clip"] for item in items])
        rows = [item["labels"] for item in items]
        longest = max(len(row) for row in rows)
        width = max(longest, min(-(-longest // self.label_multiple) * self.label_multiple, self.label_tokens))
        labels = self.collate_labels([[*row, *[IGNORED_LABEL] * (width - longest)] for row in rows], sizes.tolist())
        masks, shares = ([item[name] for item in items] for name in ("masks", "share"))
        own = {"edge_s": items[0]["edge_s"], "masks": masks, "shares": shares}
        # As arrays, since these are not moved to a device.
        given = [item["clip"] for item in items] if self.on_cpu else samples
        # Sizes stay on the CPU, since reading a size from a GPU would wait for all of the GPU's work.
        return {**labels, **own, "samples": given, "sizes": sizes.tolist()}


class BatchesAhead(Iterator[dict[str, Any]]):
    """The batches of a loader, in order, on the device; without a GPU, only reads them ahead.

    The device, not this process, waits for copies from pinned memory, which use their own stream.
    """

    def __init__(self, batches: Iterator[dict[str, Any]], device: torch.device):
        self.batches = batches
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._waiting: deque[dict[str, Any]] = deque()

    def fetch(self) -> None:
        """Reads one more batch and begins to copy it. Called while the device is busy."""
        batch = next(self.batches, None)
        if batch is not None:
            with torch.cuda.stream(self._stream):
                self._waiting.append({name: self._copied(value) for name, value in batch.items()})

    def __next__(self) -> dict[str, Any]:
        if not self._waiting:
            self.fetch()
        if not self._waiting:
            raise StopIteration
        batch = self._waiting.popleft()
        if self._stream is not None:
            present = torch.cuda.current_stream(self._device)
            present.wait_stream(self._stream)
            for tensor in _tensors(batch):
                # Otherwise the tensor's memory could be reused for the next copy while the model still reads it.
                tensor.record_stream(present)
        return batch

    def _copied(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._copied(item) for name, item in value.items()}
        return value.to(self._device, non_blocking=True) if isinstance(value, torch.Tensor) else value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, torch.Tensor):
        yield value
