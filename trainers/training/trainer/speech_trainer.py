"""The Hugging Face Trainer with the plan's batches, our objective, scores and checkpoints.

This is the only subclass of a Trainer. Of the Trainer's private methods, it overrides only `_load_from_checkpoint` and
`_save_rng_state`; `test_private_interfaces.py` has the reasons, and checks that transformers still calls them.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch.compiler import set_stance
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.trainer_callback import PrinterCallback

from trainers.models.recognizer import Recognizer
from trainers.run_folder.checkpoints import ORIGINAL
from trainers.scoring.scorer import NotFiniteError
from trainers.training.schedule import Schedule, new_scheduler
from trainers.training.sharding import full_weights, gathered_weights
from trainers.training.trainer.divergence import Divergence
from trainers.training.trainer.objective import Objective
from trainers.training.trainer.planned_batches import BatchesAhead, Clips, Collator, PlannedBatches, PlannedLoader
from trainers.training.trainer.step_times import GradientExchange, StepPart, StepTimes

BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)


class SpeechTrainer(Seq2SeqTrainer):
    """One rank's training loop.

    Attributes:
        compiled: True if layers are compiled.
        times: Time spent on parts of training; the last callback of a save must end `CHECKPOINT`.
        exchange: Time of exchanging gradients.
    """

    compiled = False

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
        """Connects the Trainer to the plan.

        `evaluate` scores the validation set after a step, on all ranks together; it returns None if a stop request
        interrupts it. Without `optimizer` (class and settings), AdamW with the arguments' settings is used.
        """
        self.objective: Objective = Objective(recognizer, arguments)
        super().__init__(
            model=recognizer.model,
            args=arguments,
            data_collator=Collator(recognizer.collate_labels, on_cpu=self.objective.on_cpu),
            train_dataset=clips,
            # The Trainer requires a data set for evaluation; `evaluate` below reads its own.
            eval_dataset=clips,
            compute_loss_func=self.objective.loss,
            callbacks=callbacks,
        )
        # accelerate has enabled ZeRO-3 in all of transformers, see `sharding.py`.
        unset_hf_deepspeed_config()
        # Set here, since Seq2SeqTrainer does not pass it on to the Trainer.
        self.optimizer_cls_and_kwargs = optimizer
        self.pop_callback(PrinterCallback)
        self.times, self.exchange = StepTimes(), GradientExchange(self)
        self._recognizer, self._score = recognizer, evaluate
        self._batch_norms = [each for each in recognizer.model.modules() if isinstance(each, BATCH_NORMS)]
        self._batches, self._clips, self._schedule = batches, clips, schedule
        self._divergence = Divergence(arguments.device, fp16=arguments.fp16)
        self._loader: PlannedLoader | None = None
        self._ahead: BatchesAhead | None = None

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains like the Trainer; at the end, ends the processes that read clips."""
        try:
            return super().train(*args, **kwargs)
        finally:
            self._ahead = None
            if self._loader is not None:
                self._loader.end()

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        """Creates the scheduler for the run's lengths; if there is one length, transformers' own scheduler."""
        if len(self._schedule.lengths) == 1:
            return super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler = new_scheduler(self._schedule, self.args, optimizer or self.optimizer)
        return self.lr_scheduler

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Returns this rank's batches of the plan. accelerate does not prepare them, since it would distribute them."""
        self._loader = PlannedLoader(
            self._clips,
            batch_sampler=self._batches,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            persistent_workers=self.args.dataloader_persistent_workers,
        )
        return self._loader

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Returns the batches of one step and the divisor of its loss; batches are copied to a GPU a step ahead."""
        batches = epoch_iterator
        if device.type == "cuda":
            if self._ahead is None or self._ahead.batches is not epoch_iterator:
                self._ahead = BatchesAhead(epoch_iterator, device)
            batches = self._ahead
        with self.times.spent_on(StepPart.DATA):
            found = list(islice(batches, num_batches))
        with self.times.spent_on(StepPart.COMMUNICATION):
            return found, self.objective.count(found, self.accelerator)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Returns the loss of one forward pass, with inputs of its bucket's length."""
        self._keep_statistics()
        with self.objective.inputs(inputs) as given:
            return super().compute_loss(model, given, *args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs one forward and backward pass; returns the loss without the regularizer's term."""
        with self._divergence.watch_deepspeed(self.state.global_step + 1):
            loss: torch.Tensor = super().training_step(*args, **kwargs)
        if self._ahead is not None:
            with self.times.reading_ahead():
                self._ahead.fetch()
        assert self.optimizer is not None
        loss = self._divergence.record(loss, self.state.global_step + 1, self.optimizer.param_groups[0]["lr"])
        return self.objective.without_regularizer(loss)

    def try_step(self) -> None:
        """Runs a forward and backward pass on this rank only, and drops the gradients; raises any error."""
        model: Any = self._recognizer.model
        batch = self.data_collator([self._clips[reference] for reference in next(iter(self._batches))])
        model.train()
        self._keep_statistics()
        with self.objective.inputs(send_to_device(batch, self.args.device)) as given:
            labels = given.pop("labels")
            with self.accelerator.autocast():
                outputs = model(**given)
            self.objective.loss(outputs, labels).backward()
        model.zero_grad()

    def _keep_statistics(self) -> None:
        """Makes batch norms use their stored statistics, also during training.

        With those of a forward pass, the loss would depend on how a step is split, and frozen weights would change.
        """
        for norm in self._batch_norms:
            norm.eval()

    def pad_labels(self, label_multiple: int) -> None:
        """Pads labels of a decoder, from now on, to a multiple of this many tokens."""
        limits = self._recognizer.limits
        if limits.new_tokens is not None:
            collate_labels = self._recognizer.collate_labels
            self.data_collator = Collator(collate_labels, label_multiple, limits.label_tokens, self.objective.on_cpu)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs a regularizer's mean since the last log next to the loss. All ranks call this."""
        if "loss" in logs:
            logs |= self.objective.logged(self.accelerator)
            logs["loss"] = self._divergence.loss_to_log(logs["loss"], self.accelerator)
        super().log(logs, start_time)
        if "loss" in logs:
            self._divergence.raise_if_logged_loss_diverged(logs["loss"], self.state.global_step, self.accelerator)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with self.times.spent_on(StepPart.SCORING):
            self._raise_if_diverged()
            # Eager, since otherwise generation would be compiled again for each length.
            with full_weights(self.model_wrapped), set_stance("force_eager") if self.compiled else nullcontext():
                try:
                    metrics = self._score(self.state.global_step)
                except NotFiniteError:
                    # Weights may still be finite in the first steps of a run that diverges. All ranks raise this.
                    self._divergence.raise_diverged(self.state.global_step, "a loss of the validation set")
            if metrics is not None:
                self.log(dict(metrics))
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics or {})
            if metrics is None:
                self.control.should_save = self.control.should_training_stop = True
            return metrics or {}

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Begins a checkpoint by writing the full model, whatever the strategy. All ranks call this."""
        self.times.begin(StepPart.CHECKPOINT)
        # Checked here, too, since a checkpoint that is saved on a stop request is not scored.
        self._raise_if_diverged()
        weights = gathered_weights(self.accelerator, self.model_wrapped)
        if self.args.should_save:
            self._write_model(Path(str(output_dir or self.args.output_dir)), weights)

    def _write_model(self, folder: Path, weights: dict[str, Any] | None) -> None:
        """Writes the model, or the adapter without its base weights, and the processor."""
        model: Any = self.model
        folder.mkdir(parents=True, exist_ok=True)
        if self._recognizer.adapter is not None:
            self._recognizer.adapter.save(folder)
        else:
            model.save_pretrained(folder, state_dict=weights)
            if self._recognizer.base is not None:
                self._recognizer.base.write(folder, ORIGINAL)
        self._recognizer.processor.save_pretrained(folder)

    def _raise_if_diverged(self) -> None:
        assert self.model is not None
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self._divergence.raise_if_any_rank_diverged(trained, self.state.global_step, self.accelerator)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self._recognizer.adapter is not None:
            self._recognizer.adapter.load(Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _save_rng_state(self, output_dir: str) -> None:
        """Does nothing, since `Reseed` sets the state in each step from the step's number."""
