"""The Hugging Face Trainer, with the plan's batches, features on the device, an exact loss and exact scores."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import Seq2SeqTrainingArguments, TrainerCallback
from transformers.trainer_callback import PrinterCallback

from trainers.data.augmentation.augmenter import Augmenter
from trainers.data.augmentation.spec_augment import mask_features
from trainers.data.batch_plan import BatchPlan
from trainers.data.features import LENGTHS, pad_samples
from trainers.data.prepared_set import ClipReader
from trainers.models.labels import Labels
from trainers.models.recognizer import IGNORED_LABEL, LabelCollator, Recognizer, Target
from trainers.run_folder.checkpoints import ORIGINAL
from trainers.training.acceleration.batches_ahead import BatchesAhead
from trainers.training.acceleration.step_times import TimedTrainer
from trainers.training.callbacks import MATCHING
from trainers.training.schedule import Schedule, new_scheduler
from trainers.training.strategies.sharded_states import ShardedStates
from trainers.training.strategies.whole_weights import shards_weights, whole_weights
from trainers.training.strategies.zero import sharding_known

# How many steps ahead shards are fetched. A step of a set that is shuffled as a whole needs about as many shards as it
# has utterances; one within a window few that are not there yet, but all of the next window's at once.
PREFETCH_STEPS, PREFETCH_STEPS_WITHIN_WINDOWS = 4, 32
# Key of what is matched at the whole context among the inputs: features and shares, see `FullContextMatching.of`.
MATCHED = "matched"


@dataclass(frozen=True)
class Request:
    """One utterance of one forward pass.

    Attributes:
        position: Where it stands in the index.
        edge_s: Seconds that it is padded to.
        filler: It only keeps a rank in step with the others; its labels are all ignored.
        epoch: Counted from 0; augmentation draws anew in each.
        share: What it counts of the step's difference from the original at the whole context; 0: it is not matched.
    """

    position: int
    edge_s: float
    filler: bool = False
    epoch: int = 0
    share: float = 0.0


class PlannedBatches(Sampler[list[Request]]):
    """One rank's forward passes of one epoch, in the plan's order."""

    def __init__(self, plan: BatchPlan, rank: int, prefetch: Callable[[np.ndarray], None], first_step: int):
        """Starts at epoch 0.

        Args:
            plan: The plan.
            rank: Whose batches.
            prefetch: Told the positions of this rank that come soon.
            first_step: Where a resumed run begins; what comes before is walked through, but not read.
        """
        self._plan = plan
        self._rank = rank
        self._prefetch = prefetch
        self._first_step = first_step
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Moves to an epoch, counted from 0."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._plan.steps_per_epoch * self._plan.shape.accumulation

    def __iter__(self) -> Iterator[list[Request]]:
        first = self._epoch * self._plan.steps_per_epoch
        end = first + self._plan.steps_per_epoch
        ahead = PREFETCH_STEPS if self._plan.window_shards is None else PREFETCH_STEPS_WITHIN_WINDOWS
        fetched = max(first, self._first_step)
        for step in range(first, end):
            for soon in range(fetched, min(step + ahead + 1, end)):
                self._prefetch(np.concatenate([rows for rows, _ in self._plan.micro_batches(soon, self._rank)]))
                fetched = soon + 1
            matched = self._plan.matched(step)
            shares = dict.fromkeys(matched.tolist(), 1 / max(1, len(matched)))
            for rows, edge_s in self._plan.micro_batches(step, self._rank):
                if len(rows):
                    own = rows.tolist()
                    yield [Request(row, edge_s, epoch=self._epoch, share=shares.get(row, 0.0)) for row in own]
                else:
                    yield [Request(int(self._plan.batch(step).rows[0]), edge_s, filler=True, epoch=self._epoch)]


class PlannedLoader(DataLoader[Any]):
    """A DataLoader that passes the epoch on to its batches."""

    def set_epoch(self, epoch: int) -> None:
        """Called by the Trainer at the start of each epoch."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


@dataclass(frozen=True)
class Clips(Dataset[dict[str, Any]]):
    """Stored clips with their labels.

    Attributes:
        reader: Reads samples.
        labels: Label ids of each position of the index.
        augmenter: Changes them. None: they are trained on as they are stored.
    """

    reader: ClipReader
    labels: Labels
    augmenter: Augmenter | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, request: Request) -> dict[str, Any]:
        clip, labels = self.reader.read(request.position), self.labels[request.position]
        masks = None
        if self.augmenter is not None:
            clip = self.augmenter.change(clip, request.position, request.epoch)
            masks = self.augmenter.masks(len(clip), request.position, request.epoch)
        return {
            "clip": clip,
            "labels": [IGNORED_LABEL] * len(labels) if request.filler else labels,
            "edge_s": request.edge_s,
            "masks": masks,
            "share": request.share,
        }


@dataclass(frozen=True)
class Collator:
    """Stacks clips and labels; features are computed later, on the device.

    Attributes:
        collate_labels: Pads labels.
        label_multiple: They are padded to a multiple of this many tokens, so that there are few lengths.
        label_tokens: But not to more than this many.
        on_cpu: Whether features are computed on the CPU, see `Features`.
    """

    collate_labels: LabelCollator
    label_multiple: int = 1
    label_tokens: int = 1
    on_cpu: bool = False

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Gives samples (B, T) int16, B sizes, edge_s, masks, shares, and what the model gets of labels (B, L)."""
        samples, sizes = pad_samples([item["clip"] for item in items])
        rows = [item["labels"] for item in items]
        longest = max(len(row) for row in rows)
        width = max(longest, min(-(-longest // self.label_multiple) * self.label_multiple, self.label_tokens))
        labels = self.collate_labels([[*row, *[IGNORED_LABEL] * (width - longest)] for row in rows])
        masks, shares = ([item[name] for item in items] for name in ("masks", "share"))
        own = {"edge_s": items[0]["edge_s"], "masks": masks, "shares": shares}
        # As arrays, which nothing moves to a device.
        given = [item["clip"] for item in items] if self.on_cpu else samples
        # Sizes stay on this side: to read one from a GPU would wait for all of its work.
        return {**labels, **own, "samples": given, "sizes": sizes.tolist()}


class SpeechTrainer(TimedTrainer, ShardedStates):
    """One rank's training loop.

    Attributes:
        compiled: Whether layers are compiled.
    """

    compiled = False
    _ahead: BatchesAhead | None = None

    def __init__(
        self,
        *,
        recognizer: Recognizer,
        arguments: Seq2SeqTrainingArguments,
        batches: PlannedBatches,
        schedule: Schedule,
        clips: Clips,
        evaluate: Callable[[int], dict[str, float] | None],
        callbacks: list[TrainerCallback],
        optimizer: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
    ):
        """Ties the Trainer to the plan.

        Args:
            recognizer: Model and processor.
            arguments: See `arguments.training_arguments`.
            batches: Forward passes of this rank.
            schedule: How long the run is.
            clips: What the plan's positions mean.
            evaluate: Scores the validation set after a step; called by all ranks together. None: a request to stop
                came between.
            callbacks: Further callbacks.
            optimizer: Class and settings. None: AdamW, as the arguments say.
        """
        features = recognizer.new_features()
        super().__init__(
            model=recognizer.model,
            args=arguments,
            data_collator=Collator(recognizer.collate_labels, on_cpu=features.on_cpu),
            train_dataset=clips,
            # The Trainer insists on one where it is to evaluate; `evaluate` below reads its own.
            eval_dataset=clips,
            compute_loss_func=self._loss,
            callbacks=callbacks,
        )
        # The Trainer for sequence to sequence does not pass it on.
        self.optimizer_cls_and_kwargs = optimizer
        self.pop_callback(PrinterCallback)
        self._recognizer = recognizer
        self._batches = batches
        self._schedule = schedule
        self._clips = clips
        self._score = evaluate
        self._features = features.to(arguments.device)
        self._lengths: torch.Tensor | None = None
        # From the original at the whole context: of the pass that runs, and over those since the loss was logged.
        self._difference: torch.Tensor | None = None
        self._differences: torch.Tensor | float = 0.0
        self._passes = 0

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        """The learning rate over the run's lengths; transformers' own where there is one length."""
        if len(self._schedule.lengths) == 1:
            return super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler = new_scheduler(self._schedule, self.args, optimizer or self.optimizer)
        return self.lr_scheduler

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The plan's batches of this rank; not prepared by accelerate, which would share them out again."""
        return PlannedLoader(
            self._clips,
            batch_sampler=self._batches,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            persistent_workers=self.args.dataloader_persistent_workers,
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The batches of one step; those for a GPU were copied there during the step before."""
        batches = epoch_iterator
        if device.type == "cuda":
            if self._ahead is None or self._ahead.batches is not epoch_iterator:
                self._ahead = BatchesAhead(epoch_iterator, device)
            batches = self._ahead
        found: tuple[list[Any], Any] = super().get_batch_samples(batches, num_batches, device)
        return found

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        moved: dict[str, Any] = super()._prepare_inputs(inputs)
        if "samples" not in moved:
            return moved
        samples, sizes, edge_s = moved.pop("samples"), moved.pop("sizes"), moved.pop("edge_s")
        clips = [torch.as_tensor(clip[:size]) for clip, size in zip(samples, sizes, strict=True)]
        features, masks, shares = self._features.inputs(clips, edge_s), moved.pop("masks"), moved.pop("shares")
        if masks[0] is not None:
            for bins, drawn in zip(self._features.bins(features), masks, strict=True):
                mask_features(bins, drawn, bins.shape[1] / edge_s)
        # Once more: to the precision of the weights, where DeepSpeed computes in less than float32.
        cast: Any = super()._prepare_input(features)
        return {**moved, **cast, **self._matched(clips, shares)}

    def _matched(self, clips: list[torch.Tensor], shares: list[float]) -> dict[str, Any]:
        """Features at the whole context, without masks, of the clips that have a share of the step's difference."""
        chosen = [number for number, share in enumerate(shares) if share]
        if not chosen:
            return {}
        whole = self._features.inputs([clips[number] for number in chosen], self._recognizer.limits.context_s)
        return {MATCHED: (whole["input_features"], torch.tensor([shares[number] for number in chosen]))}

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """What the loss is divided by, over all forward passes and ranks of a step."""
        counted = [{"labels": self._recognizer.counted(batch["labels"])} for batch in batch_samples]
        return super()._get_num_items_in_batch(counted, device)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One forward and backward pass; gives the loss without what matching adds to it."""
        self._difference = None
        with sharding_known(self.args):
            loss: torch.Tensor = super().training_step(*args, **kwargs)
        if self._ahead is not None:
            with self.times.reading_ahead():
                self._ahead.fetch()
        if self.args.fp16:
            # Where it overflows the step is skipped; such a loss would stay in each sum that is logged later.
            loss = loss.nan_to_num(0.0, 0.0, 0.0)
        self._passes += 1
        matching = self._recognizer.matching
        if matching is None or self._difference is None:
            return loss
        self._differences = self._difference + self._differences
        # The Trainer multiplies the loss by the number of ranks, over which gradients are averaged.
        return loss - self.accelerator.num_processes * matching.weight * self._difference

    def try_step(self) -> None:
        """A forward and backward pass of this rank alone, whose gradients are dropped; what fails in it is raised."""
        model = self._recognizer.model
        batch = self.data_collator([self._clips[request] for request in next(iter(self._batches))])
        model.train()
        with self.accelerator.autocast():
            loss = self.compute_loss(model, self._prepare_inputs(batch))
        loss.backward()
        model.zero_grad()

    def pad_labels(self, label_multiple: int) -> None:
        """From now on labels of a decoder are padded to a multiple of this many tokens."""
        limits = self._recognizer.limits
        if limits.new_tokens is not None:
            self.data_collator = Collator(
                self._recognizer.collate_labels, label_multiple, limits.label_tokens, self._features.on_cpu
            )

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The loss of one forward pass, at the length of its bucket."""
        given, matching = dict(inputs), self._recognizer.matching
        self._lengths = given.pop(LENGTHS, None)
        matched = given.pop(MATCHED, None)
        of_matched = matching.of(*matched) if matching is not None and matched is not None else nullcontext()
        with self._recognizer.fitted(given), of_matched:
            return super().compute_loss(model, given, *args, **kwargs)

    def _loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        target = Target(labels, self._lengths, self.args.label_smoothing_factor)
        loss = self._recognizer.loss(outputs, target, num_items_in_batch)
        matching = self._recognizer.matching
        difference: torch.Tensor | None = outputs.loss if matching is not None else None
        if matching is None or difference is None:
            return loss
        self._difference = difference.detach()
        return loss + matching.weight * difference

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds to a loss the mean difference of its steps from the original at the whole context. All ranks call it."""
        if self._recognizer.matching is not None and "loss" in logs:
            of_all = self.accelerator.gather(torch.as_tensor(self._differences, device=self.args.device)).sum()
            logs[MATCHING] = float(of_all) / (self._passes / self.args.gradient_accumulation_steps)
            self._differences, self._passes = 0.0, 0
        super().log(logs, start_time)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Scores the validation set over all ranks."""
        with whole_weights(self.model_wrapped), self._as_written():
            metrics = self._score(self.state.global_step)
        if metrics is not None:
            self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics or {})
        if metrics is None:
            self.control.should_save = self.control.should_training_stop = True
        return metrics or {}

    def _as_written(self) -> AbstractContextManager[Any]:
        """Within it no layer runs compiled: generation would be compiled anew for each length."""
        return torch.compiler.set_stance("force_eager") if self.compiled else nullcontext()

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> int:
        """Not estimated: the Trainer's estimate counts the input of one modality only."""
        return 0

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder, adapter = Path(str(output_dir or self.args.output_dir)), self._recognizer.adapter
        if adapter is None:
            # Weights that every rank holds are taken from the model, which knows the tied ones among them.
            super()._save(output_dir, state_dict if shards_weights(self.model_wrapped) else None)
            if self._recognizer.matching is not None and self.args.should_save:
                self._recognizer.matching.base.write(folder, ORIGINAL)
        elif self.args.should_save:
            adapter.save(folder)
        if self.args.should_save:
            # A pickle, and nothing that config.yaml does not say.
            (folder / "training_args.bin").unlink(missing_ok=True)
            self._recognizer.processor.save_pretrained(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self._recognizer.adapter is None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            self._recognizer.adapter.load(Path(resume_from_checkpoint))

    def _save_rng_state(self, output_dir: str) -> None:
        """Nothing: `Reseed` makes the state of each step from the step's number."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Nothing, see `_save_rng_state`."""
