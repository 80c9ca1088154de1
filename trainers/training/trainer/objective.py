"""What the Trainer minimizes: a model's inputs of a batch, its loss, and what the loss of a step is divided by."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from transformers import TrainingArguments

from trainers.data.augmentation.spec_augment import mask_features
from trainers.data.features.model_input import LENGTHS
from trainers.models.recognizer import IGNORED_LABEL, Recognizer, Target
from trainers.training.callbacks import MATCHING


class Objective:
    """The objective of one rank."""

    def __init__(self, recognizer: Recognizer, arguments: TrainingArguments):
        self._recognizer, self._arguments = recognizer, arguments
        self._features = recognizer.new_features().to(arguments.device)
        # Where DeepSpeed computes in less than float32, its weights take no other inputs.
        deepspeed = getattr(arguments, "hf_deepspeed_config", None)
        self._dtype: torch.dtype | None = deepspeed.dtype() if deepspeed is not None else None
        self._lengths: torch.Tensor | None = None
        # From the original at the full context: of the pass that runs, and over those since the loss was logged.
        self._difference: torch.Tensor | None = None
        self._differences: torch.Tensor | float = 0.0
        self._passes = 0

    @property
    def on_cpu(self) -> bool:
        return self._features.on_cpu

    @contextmanager
    def inputs(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The model's inputs of a collated batch on the device, labels among them; within it, it takes their length."""
        given = dict(batch)
        samples, sizes, edge_s, masks, shares = (
            given.pop(name) for name in ("samples", "sizes", "edge_s", "masks", "shares")
        )
        clips = [torch.as_tensor(clip[:size]) for clip, size in zip(samples, sizes, strict=True)]
        features = self._features.inputs(clips, edge_s)
        if masks[0] is not None:
            for bins, drawn in zip(self._features.bins(features), masks, strict=True):
                mask_features(bins, drawn, bins.shape[1] / edge_s)
        for name, value in features.items():
            given[name] = value.to(self._arguments.device, self._dtype if value.is_floating_point() else None)
        self._lengths = given.pop(LENGTHS, None)
        with self._recognizer.with_input_length(given), self._matched(clips, shares):
            yield given

    def _matched(self, clips: list[torch.Tensor], shares: list[float]) -> AbstractContextManager[None]:
        """Within it, clips with a share of the step's difference are given at the full context too, without masks."""
        chosen = [number for number, share in enumerate(shares) if share]
        regularizer = self._recognizer.regularizer
        self._difference = None
        if regularizer is None or not chosen:
            return nullcontext()
        full = self._features.inputs([clips[number] for number in chosen], self._recognizer.limits.context_s)
        return regularizer.of(full["input_features"], torch.tensor([shares[number] for number in chosen]))

    def count(self, batches: Sequence[dict[str, Any]], accelerator: Any) -> torch.Tensor:
        """What the loss of a step is divided by, over all forward passes and ranks. All ranks call it."""
        labels = [self._recognizer.counted_labels(batch["labels"]) for batch in batches]
        own = torch.stack([counted.ne(IGNORED_LABEL).sum() for counted in labels]).sum().to(self._arguments.device)
        total: torch.Tensor = accelerator.gather(own).sum().float()
        return total

    def loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        """The Trainer's `compute_loss_func`."""
        target = Target(labels, self._lengths, self._arguments.label_smoothing_factor)
        loss = self._recognizer.loss(outputs, target, num_items_in_batch)
        regularizer = self._recognizer.regularizer
        difference: torch.Tensor | None = outputs.loss if regularizer is not None else None
        if regularizer is None or difference is None:
            return loss
        self._difference = difference.detach()
        added: torch.Tensor = regularizer.weight * difference
        return loss + added

    def without_matching(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss of the pass that has run, without what matching added, which is summed up for the log."""
        self._passes += 1
        regularizer = self._recognizer.regularizer
        if regularizer is None or self._difference is None:
            return loss
        self._differences = self._difference + self._differences
        # The Trainer multiplies the loss by the number of ranks, over which gradients are averaged.
        added: torch.Tensor = self._arguments.world_size * regularizer.weight * self._difference
        return loss - added

    def logged(self, accelerator: Any) -> dict[str, float]:
        """The mean difference of the steps since the last call, where there is matching. All ranks call it."""
        if self._recognizer.regularizer is None:
            return {}
        of_all = accelerator.gather(torch.as_tensor(self._differences, device=self._arguments.device)).sum()
        mean = float(of_all) / (self._passes / self._arguments.gradient_accumulation_steps)
        self._differences, self._passes = 0.0, 0
        return {MATCHING: mean}
