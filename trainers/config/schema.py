"""TrainConfig: the one YAML that a user writes, as frozen, typed parts. Imports no torch.

Every field states its meaning, unit and special values. Unknown keys are refused (see `validation` for how the
message is made). Faults that need two fields to be seen are found by the validators at the end of each part.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from trainers.config.data_part import DataPart
from trainers.config.part import Location, NotNegative, Part, Positive, PositiveFloat, refuse_unsupported, trains
from trainers.config.storage_location import StorageOptions

# Ray counts ten-thousandths in 64 bits, also over all workers.
ResourceAmount = Annotated[float, Field(ge=0, le=1e14)]
Dropout = Annotated[float, Field(ge=0, lt=1)]

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
URL = r"^https?://[^@\s]+$"
PREPARED, EVALUATIONS = FOLDERS_BESIDE_RUNS = ("prepared", "evaluations")
# Of a weight in a checkpoint: itself and AdamW's two moments, in float32.
BYTES_PER_WEIGHT = 3 * 4
# One logical CPU stays free for Ray Data while workers hold theirs (ray#41603: without it, a hang).
CPUS_FOR_DATA = 1.0


class RunPart(Part):
    """What the run is called, where it is kept and how it survives failures."""

    name: str | None = Field(
        None,
        pattern=NAME,
        max_length=100,
        description="Name of the run and of its folder. null: made from the recipe's name and the time, new each time.",
    )
    storage_path: Location | None = Field(
        None,
        description="Folder or s3:// URL under which the run folder is made. null: Ray's own default, ~/ray_results.",
    )
    s3_endpoint_url: str | None = Field(
        None,
        description="Address of an S3-compatible server. null: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or AWS.",
    )
    resume: str = Field(
        "auto",
        pattern=r"^(auto|never|from:.+)$",
        description="auto: the same experiment continues. never: an existing run folder is an error. "
        "from:<checkpoint>: start a new run with the weights and the vocabulary of that checkpoint, an absolute folder "
        "or s3:// URL; its optimizer, schedule and steps are the new run's own.",
    )
    seed: NotNegative = Field(42, description="Seed of weights, order of utterances and dropout.")
    max_failures: int = Field(
        3,
        ge=-1,
        description="How often a failed worker group is started again within an attempt. -1: without limit.",
    )

    @property
    def storage_options(self) -> StorageOptions:
        """How the run's storage is reached."""
        return StorageOptions.of(dict(self))

    @field_validator("resume")
    @classmethod
    def _a_supported_checkpoint(cls, resume: str) -> str:
        refuse_unsupported(resume.removeprefix("from:"))
        return resume

    @field_validator("name")
    @classmethod
    def _a_name_of_its_own(cls, name: str | None) -> str | None:
        if name in FOLDERS_BESIDE_RUNS:
            raise ValueError("is a folder that Rayscribe keeps beside the runs: take another name")
        return name


class ModelPart(Part):
    """The recognizer: pretrained weights, or sizes of a new one."""

    init: Literal["pretrained", "scratch"] = Field("pretrained", description="Start from weights, or from sizes.")
    name_or_path: Location | None = Field(None, description="pretrained: Hub id, or folder. null: for scratch.")
    revision: str | None = Field(None, description="Git revision on the Hub. null: its newest.")
    language: str | None = Field(
        None, description="Language of the speech, in Whisper's words (english). null: an English-only model."
    )
    task: Literal["transcribe", "translate"] = Field("transcribe", description="What the transcripts are.")
    max_context_s: Positive | None = Field(
        None,
        le=30,
        description="Longest input in whole seconds; clips are padded to the edge of their own length bucket. "
        "null: every clip is padded to the model's full 30 s, as the reference does. "
        "Opt-in for pretrained weights: they must be adapted to short input before it helps.",
    )
    vocab_size: Positive = Field(1000, ge=300, description="scratch: most byte-level BPE tokens learned from the text.")
    d_model: Positive = Field(128, description="scratch: width.")
    encoder_layers: Positive = Field(2, description="scratch: encoder layers.")
    decoder_layers: Positive = Field(1, description="scratch: decoder layers.")
    attention_heads: Positive = Field(4, description="scratch: attention heads of every layer; must divide d_model.")
    ffn_dim: Positive | None = Field(None, description="scratch: width of the feed-forward layers. null: 4 × d_model.")
    num_mel_bins: Positive = Field(80, description="scratch: mel bins.")
    max_label_tokens: Positive = Field(448, le=448, description="scratch: most label tokens of an utterance.")
    dropout: Dropout | None = Field(None, description="Dropout. null: the model's own; 0 for scratch.")
    attention_dropout: Dropout | None = Field(None, description="Dropout of attention weights. null: the model's own.")
    activation_dropout: Dropout | None = Field(
        None, description="Dropout in feed-forward layers. null: the model's own."
    )
    apply_spec_augment: bool = Field(False, description="Mask stretches of frames and of mel bins in training.")
    mask_time_prob: Dropout = Field(0.05, description="SpecAugment: about this fraction of frames is masked.")
    mask_feature_prob: Dropout = Field(0.0, description="SpecAugment: about this fraction of mel bins is masked.")

    @model_validator(mode="after")
    def _init_fits(self, info: ValidationInfo) -> Self:
        if self.init == "pretrained" and self.name_or_path is None and trains(info):
            raise ValueError("name_or_path is missing: name a Hub id or folder, or set model.init: scratch")
        if self.init == "scratch" and self.name_or_path is not None:
            raise ValueError(f"name_or_path is {self.name_or_path} but init is scratch: set model.init: pretrained")
        if self.init == "scratch" and self.language is None and trains(info):
            raise ValueError("language is missing: a scratch model needs one, e.g. model.language: English")
        if self.d_model % self.attention_heads:
            raise ValueError(f"d_model {self.d_model} must be a multiple of attention_heads {self.attention_heads}")
        return self


class TrainingPart(Part):
    """How long, how large and how fast to train."""

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
        "of utterances. null: off.",
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
        description="Shuffle utterances within this many shards at a time. 0: the whole set. null: the whole set, or "
        "64 shards for sets on s3://; a run that began with another window keeps it.",
    )
    fp16: bool = Field(False, description="16-bit floats with loss scaling (CUDA).")
    bf16: bool = Field(False, description="bfloat16 (newer CUDA GPUs, and CPUs).")
    gradient_checkpointing: bool = Field(False, description="Recompute activations to save memory.")
    generation_max_length: Positive = Field(225, description="Most tokens of a hypothesis when scoring.")
    generation_num_beams: Positive = Field(1, description="Beams when scoring. 1: greedy.")
    full_context_fraction: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Fraction of batches of a bucketed model that are padded to the whole context, so that the model "
        "also hears the padding of tools that know no buckets.",
    )
    report_to: list[str] = Field(["tensorboard"], description="Trackers, in transformers' names; [] for none.")
    training_args: dict[str, Any] = Field(
        default_factory=dict,
        description="Any further Seq2SeqTrainingArguments; those that Rayscribe sets itself are errors.",
    )

    @model_validator(mode="after")
    def _steps_fit(self, info: ValidationInfo) -> Self:
        if (self.max_steps is None) == (self.num_train_epochs is None) and trains(info):
            raise ValueError(
                f"max_steps is {self.max_steps} and num_train_epochs is {self.num_train_epochs}: "
                "give one of them and set the other to null"
            )
        if self.save_steps % self.scoring_steps:
            raise ValueError(
                f"save_steps {self.save_steps} must be a multiple of eval_steps {self.scoring_steps}: "
                "each checkpoint is kept by its score"
            )
        if self.global_batch_size is not None and self.max_batch_duration_s is not None:
            raise ValueError("global_batch_size and max_batch_duration_s both size the batch: set one of them to null")
        if self.fp16 and self.bf16:
            raise ValueError("fp16 and bf16 exclude each other: keep one")
        return self

    @property
    def scoring_steps(self) -> int:
        """Optimizer steps between two scores on the validation set."""
        return self.eval_steps if self.eval_steps is not None else self.save_steps


class ScalingPart(Part):
    """How many workers there are, and what each takes. Ray's words."""

    num_workers: Positive = Field(1, le=100_000, description="Training workers, one process each.")
    use_gpu: bool = Field(False, description="One GPU for each worker.")
    resources_per_worker: dict[str, ResourceAmount] = Field(
        default_factory=dict,
        description="What each worker reserves, e.g. {CPU: 8, GPU: 1}. {}: 1 CPU, and a GPU if used.",
    )
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        "PACK", description="How Ray places the workers over the nodes."
    )

    @property
    def worker_resources(self) -> dict[str, float]:
        """Logical resources of one worker, Ray's defaults filled in."""
        return {"CPU": 1.0, **({"GPU": 1.0} if self.use_gpu else {}), **self.resources_per_worker}


class CheckpointPart(Part):
    """Which checkpoints are kept, over all attempts of a run."""

    num_to_keep: Positive | None = Field(3, description="Keep this many of the best, and the newest. null: keep all.")
    checkpoint_score_attribute: Literal["eval_wer", "eval_cer", "eval_ser"] | None = Field(
        None,
        description="The score on the validation set that ranks checkpoints. A loss does not rank recognizers. null: "
        "eval_cer for a language that is written without spaces between words (model.language), else eval_wer.",
    )
    checkpoint_score_order: Literal["min"] = Field("min", description="An error rate is better when it is smaller.")

    @property
    def score_attribute(self) -> str:
        """The attribute, of a config whose run has begun."""
        assert self.checkpoint_score_attribute is not None, "the run's beginning gives it a value"
        return self.checkpoint_score_attribute


class TrainConfig(Part):
    """One experiment, whole: everything that training reads, and `job`, which it only carries."""

    run: RunPart = RunPart()
    data: DataPart
    model: ModelPart
    training: TrainingPart
    scaling: ScalingPart = ScalingPart()
    checkpoint: CheckpointPart = CheckpointPart()
    job: dict[str, Any] = Field(default_factory=dict, description="For the jobs service; not read by training.")

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        context_s = self.model.max_context_s
        if context_s is None and self.training.full_context_fraction:
            raise ValueError(
                "training.full_context_fraction needs buckets: set model.max_context_s, or full_context_fraction: 0"
            )
        if self.data.min_duration_s >= (context_s or 30):
            raise ValueError(
                f"data.min_duration_s {self.data.min_duration_s} leaves nothing below model.max_context_s {context_s}"
            )
        slots = self.scaling.num_workers * self.training.gradient_accumulation_steps
        if self.training.global_batch_size is not None and self.training.global_batch_size < slots:
            raise ValueError(
                f"training.global_batch_size {self.training.global_batch_size} is less than scaling.num_workers × "
                f"training.gradient_accumulation_steps = {slots}: some workers would have nothing to do"
            )
        for name in ("fp16",):
            if getattr(self.training, name) and not self.scaling.use_gpu:
                raise ValueError(f"training.{name} needs a GPU: set scaling.use_gpu: true, or training.{name}: false")
        return self
