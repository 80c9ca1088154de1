"""The config's training part: length, batch sizes and learning rate; and its adapt part. See `schema`."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo

from trainers.config.parts.part import NotNegative, Part, Positive, PositiveFloat, Settings, rule, trains

# For AdamW, the default optimizer, which moves each weight by about this much in a step.
MOST_LEARNING_RATE = 0.1
Target = Annotated[str, Field(min_length=1)]


class TrainingPart(Part):
    """The length of the training, its batch sizes and its optimization."""

    max_steps: Positive | None = Field(None, description="Optimizer steps. null: use num_train_epochs.")
    num_train_epochs: PositiveFloat | None = Field(None, description="Passes over the data. null: use max_steps.")
    per_device_train_batch_size: Positive = Field(
        16,
        description="Utterances of one forward pass of one worker; with global_batch_size, the most of them.",
    )
    global_batch_size: Positive | None = Field(
        None,
        description="Utterances of one optimizer step over all workers; the order of utterances then does not depend "
        "on the number of workers. null: per_device_train_batch_size × workers × gradient_accumulation_steps.",
    )
    max_batch_duration_s: PositiveFloat | None = Field(
        None,
        description="Dynamic batching: the most padded seconds of one forward pass of one worker, instead of a number "
        "of utterances; of a family whose memory grows with the labels, too, seconds that take as much. null: off.",
    )
    per_device_eval_batch_size: Positive = Field(
        16, description="Utterances of one generate call; never moves a score."
    )
    gradient_accumulation_steps: Positive = Field(1, description="Forward passes of a worker per optimizer step.")
    learning_rate: PositiveFloat = Field(1e-5, description="Peak learning rate.")
    warmup_steps: NotNegative = Field(0, description="Optimizer steps from zero to the peak learning rate.")
    lr_scheduler_type: str = Field("linear", description="Shape of the decay after warm-up, a transformers name.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay.")
    max_grad_norm: float = Field(1.0, ge=0, description="Gradients are clipped to this norm. 0: not clipped.")
    extend: Literal["rescale", "restart", "constant"] | None = Field(
        None,
        description="How the learning rate goes on where max_steps or num_train_epochs of a begun run is changed. "
        "rescale: the schedule over the new length. restart: warm-up and decay once more over the added steps. "
        "constant: the added steps at the last rate, unless that is 0. null: such a change is refused.",
    )
    eval_steps: Positive | None = Field(None, description="Score the validation set this often. null: save_steps.")
    save_steps: Positive = Field(
        1000, description="Checkpoint this often; a multiple of eval_steps, as each is scored."
    )
    logging_steps: Positive = Field(25, description="Report the loss this often.")
    shuffle_window_shards: NotNegative | None = Field(
        None,
        description="Shuffle utterances within this many shards at a time. 0: all of the set. null: all of the set, or "
        "64 shards for sets in a bucket; a run that began with another window keeps it.",
    )
    pad_to: Literal["bucket", "longest"] | None = Field(
        None,
        description="Length of a batch. longest: of its longest clip, and buckets are finer, where the model masks "
        "padding; else as bucket. bucket: of its bucket, so that there are few lengths. null: longest, or bucket with "
        "torch_compile; a run that began otherwise goes on so.",
    )
    fp16: bool = Field(False, description="16-bit floats with loss scaling (CUDA).")
    bf16: bool = Field(False, description="bfloat16 (newer CUDA GPUs, and CPUs).")
    gradient_checkpointing: bool = Field(False, description="Recompute activations to save memory.")
    torch_compile: bool = Field(
        False,
        description="Compile the model's layers for each shape of a batch; where that fails, training continues "
        "without it, and a line says why. Labels are padded to a multiple of 32 tokens then.",
    )
    full_context_fraction: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Fraction of batches of a bucketed model that are padded to the full context, so that the model "
        "also learns the full padding of tools that have no buckets.",
    )
    full_context_eval: bool = Field(
        True,
        description="Whether a model with a shorter model.max_context_s than its own is scored at its full context, "
        "too, each time that the validation set is scored in training, which costs ten times as much, or more. Its "
        "final scores always are.",
    )
    report_to: list[str] = Field(
        ["tensorboard"],
        description="Trackers, in transformers' names; [] for none. tensorboard, wandb, mlflow and trackio show one "
        "run for all its attempts; others are fed by transformers itself, and show each attempt.",
    )
    training_args: Settings = Field(
        default_factory=dict,
        description="Any further Seq2SeqTrainingArguments; those that Rayscribe sets itself are errors.",
    )

    @rule
    def _steps_fit(self, info: ValidationInfo) -> Iterator[str]:
        if (self.max_steps is None) == (self.num_train_epochs is None) and trains(info):
            yield (
                f"max_steps is {self.max_steps} and num_train_epochs is {self.num_train_epochs}: "
                "give one of them and set the other to null"
            )
        if self.save_steps % self.scoring_steps:
            yield (
                f"save_steps {self.save_steps} must be a multiple of eval_steps {self.scoring_steps}: "
                "each checkpoint is kept by its score"
            )
        if self.global_batch_size is not None and self.max_batch_duration_s is not None:
            yield "global_batch_size and max_batch_duration_s both size the batch: set one of them to null"
        if self.learning_rate > MOST_LEARNING_RATE and "optim" not in self.training_args:
            yield (
                f"learning_rate is {self.learning_rate:g}, and AdamW diverges above {MOST_LEARNING_RATE:g}: give 1e-6 "
                "to 1e-3, or name the optimizer that it is meant for (training_args.optim)"
            )
        if self.fp16 and self.bf16:
            yield "fp16 and bf16 exclude each other: keep one"

    def warmup_note(self, steps: int | None) -> str | None:
        """Returns a note if the learning rate never reaches its peak; None if it does, or the steps are unknown."""
        # `unused_fields` reports that a constant schedule has no warm-up.
        if steps is None or self.warmup_steps < steps or not self.warmup_steps or self.lr_scheduler_type == "constant":
            return None
        return (
            f"training.warmup_steps {self.warmup_steps} is not below the run's {steps} steps, so the learning rate "
            f"never reaches training.learning_rate {self.learning_rate:g}: lower training.warmup_steps, to a tenth of "
            "the steps as is usual"
        )

    @property
    def checkpoints_reentrantly(self) -> bool:
        """True if activations are recomputed with torch's older, reentrant method, which is not Rayscribe's default."""
        # Under its new name and its old one.
        given = [self.training_args.get(f"{name}_checkpointing_kwargs") for name in ("activation", "gradient")]
        return any(isinstance(each, dict) and bool(each.get("use_reentrant")) for each in given)

    @property
    def scoring_steps(self) -> int:
        return self.eval_steps if self.eval_steps is not None else self.save_steps


class AdaptPart(Part):
    """Selects the weights of the model that are trained; the others stay the same, bit for bit."""

    method: Literal["full", "freeze_encoder", "decoder_only", "last_n_layers", "lora"] = Field(
        "full",
        description="full: all of them. freeze_encoder: all but the encoder's; of a CTC model, its head. decoder_only: "
        "the language-model side, which is the decoder's embeddings, self-attention, feed-forward layers and norms; "
        "its cross-attention stays as it is, and so does all that is not the decoder's. last_n_layers: the last n "
        "layers of the encoder and of the decoder; a CTC model's last n and its head. lora: a low-rank adapter next to "
        "some weights, which is merged into them in the end.",
    )
    n: Positive | None = Field(None, description="last_n_layers: how many. null: for the other methods.")
    r: Positive = Field(16, description="lora: rank.")
    alpha: Positive = Field(32, description="lora: the adapter's output is multiplied by alpha / r.")
    dropout: float = Field(0.05, ge=0, lt=1, description="lora: dropout of the adapter's input.")
    target_modules: list[Target] | None = Field(
        None,
        min_length=1,
        description="lora: the linear layers that get an adapter, by the ends of their names, e.g. [q_proj, v_proj]. "
        "null: all projections of every attention.",
    )

    @rule
    def _fields_fit_the_method(self) -> Iterator[str]:
        if self.method == "last_n_layers" and self.n is None:
            yield "n is missing: say how many layers are trained, e.g. adapt.n: 2"
        if self.method != "last_n_layers" and self.n is not None:
            yield f"n is {self.n}, but method is {self.method}: set method: last_n_layers, or n: null"
        if self.method != "lora":
            for name in ("r", "alpha", "dropout", "target_modules"):
                value, default = getattr(self, name), type(self).model_fields[name].default
                if value != default:
                    yield f"{name} is {value}, but method is {self.method}: set method: lora, or leave {name} out"
