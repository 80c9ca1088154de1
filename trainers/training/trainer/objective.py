"""The training objective: a model's inputs from a batch, its loss, and the divisor of a step's loss."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from transformers import TrainingArguments

from trainers.data.augmentation import mask_features
from trainers.data.features import LENGTHS
from trainers.models.recognizer import IGNORED_LABEL, Recognizer, Target


class Objective:
    """The objective of one rank."""

    def __init__(self, recognizer: Recognizer, arguments: TrainingArguments):
        self._recognizer, self._arguments = recognizer, arguments
        self._features = recognizer.new_features().to(arguments.device)
        self._lengths: torch.Tensor | None = None
        # The regularizer's term in the current pass, and its sum since the last log.
        self._term: torch.Tensor | None = None
        self._terms: torch.Tensor | float = 0.0
        self._passes = 0

    @property
    def on_cpu(self) -> bool:
        return self._features.on_cpu

    @contextmanager
    def inputs(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the model's inputs from a collated batch, with labels, on the device; sets its input length."""
        given = dict(batch)
        samples, sizes, edge_s, masks, shares = (
            given.pop(name) for name in ("samples", "sizes", "edge_s", "masks", "shares")
        )
        clips = [torch.as_tensor(clip[:size]) for clip, size in zip(samples, sizes, strict=True)]
        features = self._features.inputs(clips, edge_s)
        if masks[0] is not None:
            for bins, drawn in zip(self._features.bins(features), masks, strict=True):
                mask_features(bins, drawn, bins.shape[1] / edge_s)
        for name, value in self._recognizer.in_type_of_weights(features).items():
            given[name] = value.to(self._arguments.device)
        self._lengths = given.pop(LENGTHS, None)
        with self._recognizer.with_input_length(given), self._regularized(clips, shares):
            yield given

    def _regularized(self, clips: list[torch.Tensor], shares: list[float]) -> AbstractContextManager[None]:
        """While the block runs, makes the model compute the regularizer's term over the clips with a nonzero share."""
        sample = [number for number, share in enumerate(shares) if share]
        regularizer = self._recognizer.regularizer
        self._term = None
        if regularizer is None or not sample:
            return nullcontext()
        return regularizer.of([clips[number] for number in sample], torch.tensor([shares[number] for number in sample]))

    def count(self, batches: Sequence[dict[str, Any]], accelerator: Any) -> torch.Tensor:
        """Returns the divisor of a step's loss: the labels of all forward passes and ranks. All ranks call this."""
        labels = [self._recognizer.counted_labels(batch["labels"]) for batch in batches]
        own = torch.stack([counted.ne(IGNORED_LABEL).sum() for counted in labels]).sum().to(self._arguments.device)
        total: torch.Tensor = accelerator.gather(own).sum().float()
        return total

    def loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        """Computes the loss, as the Trainer's `compute_loss_func`."""
        target = Target(labels, self._lengths, self._arguments.label_smoothing_factor)
        loss = self._recognizer.loss(outputs, target, num_items_in_batch)
        regularizer = self._recognizer.regularizer
        if regularizer is None or outputs.loss is None:
            return loss
        self._term = outputs.loss.detach()
        added: torch.Tensor = regularizer.weight * outputs.loss
        return loss + added

    def without_regularizer(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss of the last pass without the regularizer's term, which is summed for the log."""
        self._passes += 1
        regularizer = self._recognizer.regularizer
        if regularizer is None or self._term is None:
            return loss
        self._terms = self._term + self._terms
        # The Trainer multiplies the loss by the number of ranks, over which gradients are averaged.
        added: torch.Tensor = self._arguments.world_size * regularizer.weight * self._term
        return loss - added

    def logged(self, accelerator: Any) -> dict[str, float]:
        """Returns the regularizer's mean over the steps since the last call; empty without one. All ranks call this."""
        regularizer = self._recognizer.regularizer
        if regularizer is None:
            return {}
        of_all = accelerator.gather(torch.as_tensor(self._terms, device=self._arguments.device)).sum()
        mean = float(of_all) / (self._passes / self._arguments.gradient_accumulation_steps)
        self._terms, self._passes = 0.0, 0
        return {regularizer.name: mean}
