"""The config's training part: length, batch sizes and learning rate; and its adapt part. See `schema`."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo

from trainers.config.parts.part import NotNegative, Part, Positive, PositiveFloat, Settings, idle_fields, rule, trains

# For AdamW, the default optimizer, which moves each weight by about the learning rate in a step.
MOST_LEARNING_RATE = 0.1
Target = Annotated[str, Field(min_length=1)]


class TrainingPart(Part):
    """The length of the training, its batch sizes and its optimization."""

    max_steps: Positive | None = Field(None, description="Optimizer steps. null: use num_train_epochs.")
    num_train_epochs: PositiveFloat | None = Field(None, description="Passes over the data. null: use max_steps.")
    per_device_train_batch_size: Positive = Field(
        16,
        description="Utterances of one forward pass of one worker; with global_batch_size, an upper limit.",
    )
    global_batch_size: Positive | None = Field(
        None,
        description="Utterances of one optimizer step over all workers, whose order then does not depend on the number "
        "of workers. null: per_device_train_batch_size × workers × gradient_accumulation_steps.",
    )
    max_batch_duration_s: PositiveFloat | None = Field(
        None,
        description="Dynamic batching: limits the padded seconds of one forward pass of one worker, instead of its "
        "number of utterances. If labels need memory, too, they count as the seconds that need as much. null: off.",
    )
    per_device_eval_batch_size: Positive = Field(
        16, description="Utterances of one generate call; does not change scores."
    )
    gradient_accumulation_steps: Positive = Field(1, description="Forward passes of a worker per optimizer step.")
    learning_rate: PositiveFloat = Field(1e-5, description="Peak learning rate.")
    warmup_steps: NotNegative = Field(0, description="Optimizer steps from zero to the peak learning rate.")
    lr_scheduler_type: str = Field("linear", description="Schedule after the warm-up, by its name in transformers.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay.")
    max_grad_norm: float = Field(1.0, ge=0, description="Gradients are clipped to this norm. 0: not clipped.")
    extend: Literal["rescale", "restart", "constant"] | None = Field(
        None,
        description="Learning rate when max_steps or num_train_epochs of a started run is changed. rescale: the "
        "schedule over the new length. restart: another warm-up and decay over the added steps. constant: the last "
        "rate for the added steps, unless it is 0. null: such a change is refused.",
    )
    eval_steps: Positive | None = Field(None, description="Score the validation set this often. null: save_steps.")
    patience: Positive | None = Field(
        None,
        description="End training after this many validations without a better score, by "
        "checkpoint.checkpoint_score_attribute. null: train to the last step.",
    )
    save_steps: Positive = Field(
        1000, description="Save a checkpoint this often: a multiple of eval_steps, since each checkpoint is scored."
    )
    logging_steps: Positive = Field(25, description="Report the loss this often.")
    shuffle_window_shards: NotNegative | None = Field(
        None,
        description="Shuffle utterances within this many shards at a time. 0: within the complete set. null: 64 for "
        "sets in a bucket, else 0; a started run keeps its window.",
    )
    pad_to: Literal["bucket", "longest"] | None = Field(
        None,
        description="What the clips of a batch are padded to. bucket: the length of their bucket, so that there are "
        "few lengths. longest: the longest clip, with finer buckets; only for models that mask padding, otherwise as "
        "bucket. null: longest, or bucket with torch_compile; a started run keeps its choice.",
    )
    keep_timestamps: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Whisper: fraction of the training clips whose labels have timestamps, so that the model still "
        "writes them. Times are those of the manifest's segments (data.pack_segments_s) or, for other clips, those "
        "that the initial weights write, before the first step. 0: no timestamps.",
    )
    previous_text: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Whisper: fraction of the training clips that follow another one in their recording "
        "(data.pack_segments_s) for which the model is given its text, as in long-form recognition.",
    )
    fp16: bool = Field(False, description="Compute in 16-bit floats, with loss scaling (CUDA).")
    bf16: bool = Field(False, description="Compute in bfloat16 (newer CUDA GPUs, and CPUs).")
    gradient_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass to save memory."
    )
    torch_compile: bool = Field(
        False,
        description="Compile the model's layers for each shape of a batch, with labels padded to multiples of 32 "
        "tokens. If compilation fails, a line says why, and training continues without it.",
    )
    full_context_fraction: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Fraction of batches that are padded to the full context, so that a model with buckets also learns "
        "the padding of tools without buckets.",
    )
    full_context_eval: bool = Field(
        True,
        description="For a model.max_context_s below the model's own: also score each validation at the full context, "
        "which takes at least ten times as long. Final scores always include it.",
    )
    report_to: list[str] = Field(
        ["tensorboard"],
        description="Trackers, by their names in transformers; [] for none. tensorboard, wandb, mlflow and trackio "
        "show all attempts as one run; transformers itself writes to the others, which show each attempt.",
    )
    training_args: Settings = Field(
        default_factory=dict,
        description="Any other Seq2SeqTrainingArguments; those that Rayscribe sets itself are refused.",
    )

    @rule
    def _steps_fit(self, info: ValidationInfo) -> Iterator[str]:
        if (self.max_steps is None) == (self.num_train_epochs is None) and trains(info):
            yield (
                f"max_steps is {self.max_steps} and num_train_epochs is {self.num_train_epochs}: "
                "set one of them, and the other to null"
            )
        if self.save_steps % self.scoring_steps:
            yield (
                f"save_steps {self.save_steps} must be a multiple of eval_steps {self.scoring_steps}, "
                "since checkpoints are ranked by their scores"
            )
        if self.global_batch_size is not None and self.max_batch_duration_s is not None:
            yield "global_batch_size and max_batch_duration_s both size the batch: set one of them to null"
        if self.learning_rate > MOST_LEARNING_RATE and "optim" not in self.training_args:
            yield (
                f"learning_rate is {self.learning_rate:g}, and AdamW diverges above {MOST_LEARNING_RATE:g}: give 1e-6 "
                "to 1e-3, or name the optimizer that it is meant for (training_args.optim)"
            )
        if self.fp16 and self.bf16:
            yield "fp16 and bf16 are both true: keep one"

    def warmup_note(self, steps: int | None) -> str | None:
        """Returns a note if the learning rate never reaches its peak; None if it does, or `steps` is None."""
        # `unused_fields` reports that a constant schedule has no warm-up.
        if steps is None or self.warmup_steps < steps or not self.warmup_steps or self.lr_scheduler_type == "constant":
            return None
        return (
            f"training.warmup_steps {self.warmup_steps} is not below the run's {steps} steps, so the learning rate "
            f"never reaches training.learning_rate {self.learning_rate:g}: lower it, usually to a tenth of the steps"
        )

    @property
    def checkpoints_reentrantly(self) -> bool:
        """True if activations are recomputed with torch's older, reentrant method, which is not Rayscribe's default."""
        # The argument has a new name and an old one.
        given = [self.training_args.get(f"{name}_checkpointing_kwargs") for name in ("activation", "gradient")]
        return any(isinstance(each, dict) and bool(each.get("use_reentrant")) for each in given)

    @property
    def scoring_steps(self) -> int:
        return self.eval_steps if self.eval_steps is not None else self.save_steps


class AdaptPart(Part):
    """Selects the weights that are trained; the others stay the same, bit for bit."""

    method: Literal["full", "freeze_encoder", "decoder_only", "last_n_layers", "lora"] = Field(
        "full",
        description="Weights that are trained. full: all. freeze_encoder: all but the encoder; of a CTC model, the "
        "head. decoder_only: the decoder's embeddings, self-attention, feed-forward layers and norms, but not its "
        "cross-attention. last_n_layers: the last n layers of the encoder and of the decoder; of a CTC model, its last "
        "n layers and the head. lora: a low-rank adapter, which is merged into the model at the end.",
    )
    n: Positive | None = Field(None, description="last_n_layers: the number of layers. null: for the other methods.")
    r: Positive = Field(16, description="lora: rank.")
    alpha: Positive = Field(32, description="lora: the adapter's output is multiplied by alpha / r.")
    dropout: float = Field(0.05, ge=0, lt=1, description="lora: dropout of the adapter's input.")
    target_modules: list[Target] | None = Field(
        None,
        min_length=1,
        description="lora: linear layers that get an adapter, by the ends of their names, e.g. [q_proj, v_proj]. "
        "null: all projections of every attention.",
    )

    @rule
    def _fields_fit_the_method(self) -> Iterator[str]:
        if self.method == "last_n_layers" and self.n is None:
            yield "n is missing: set the number of layers that are trained, e.g. adapt.n: 2"
        if self.method != "last_n_layers" and self.n is not None:
            yield f"n is {self.n}, but method is {self.method}: set method: last_n_layers, or n: null"
        if self.method != "lora":
            of_lora = ("r", "alpha", "dropout", "target_modules")
            yield from idle_fields(self, of_lora, f"method is {self.method}", "set method: lora")
