"""Defines the YAML that a user writes, as frozen, typed parts: TrainConfig, or with `trainer: script` ScriptConfig.

Imports no torch.

Every field states its meaning, unit and special values. Unknown keys are refused (`validation` makes the message).
The validators at the end of each part check fields together.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, ValidationInfo

from trainers.config.family_table import AnyDecodePart, AnyModelPart
from trainers.config.parts.augment_part import AugmentPart
from trainers.config.parts.conditions import BUILT_IN_SETS, SOUND_SETS, VALIDATION
from trainers.config.parts.data_part import DataPart
from trainers.config.parts.evaluate_part import EvaluatePart
from trainers.config.parts.part import Part, Settings, rule, trains
from trainers.config.parts.run_part import CheckpointPart, HubPart, RunPart
from trainers.config.parts.scaling_part import ScalingPart
from trainers.config.parts.scoring_part import ScoringPart
from trainers.config.parts.script_part import ScriptPart, is_python
from trainers.config.parts.strategy_part import StrategyPart, strategy_misfits
from trainers.config.parts.training_part import AdaptPart, TrainingPart
from trainers.errors import ConfigError
from trainers.metrics.known_metrics import known_metrics

JOB = "For the jobs service; training does not use it."
TRAINER = (
    "huggingface: a training, configured by the other parts. script: an unmodified program; such a recipe has only the "
    "parts run, script, scaling and job."
)
# Ray's names of accelerators other than GPUs, which a worker would reserve, and then train on CPUs.
UNUSED_ACCELERATORS = ("FURIOSA", "HPU", "MBLT", "NPU", "RBLN", "TPU", "TTNPU", "neuron_cores")


class TrainConfig(Part):
    """One experiment: everything that training reads, and `job`, which training does not read."""

    trainer: Literal["huggingface"] = Field("huggingface", description=TRAINER)
    run: RunPart = RunPart()
    data: DataPart
    model: AnyModelPart
    adapt: AdaptPart = AdaptPart()
    training: TrainingPart
    augment: AugmentPart = AugmentPart()
    decode: AnyDecodePart = Field({}, validate_default=True)
    scoring: ScoringPart = ScoringPart()
    evaluate: EvaluatePart = EvaluatePart()
    scaling: ScalingPart = ScalingPart()
    strategy: StrategyPart = StrategyPart()
    checkpoint: CheckpointPart = CheckpointPart()
    hub: HubPart = HubPart()
    job: Settings = Field(default_factory=dict, description=JOB)

    @rule
    def _parts_fit(self, info: ValidationInfo) -> Iterator[str]:
        context_s = self.model.max_context_s
        if context_s is None and self.training.full_context_fraction and trains(info):
            yield "training.full_context_fraction needs buckets: set model.max_context_s, or full_context_fraction: 0"
        if self.data.min_duration_s >= (context_s or 30):
            yield (
                f"data.min_duration_s {self.data.min_duration_s} leaves nothing below model.max_context_s {context_s}"
            )
        slots = self.scaling.max_workers * self.training.gradient_accumulation_steps
        count = "scaling.num_workers.max" if self.scaling.is_elastic else "scaling.num_workers"
        if self.training.global_batch_size is not None and self.training.global_batch_size < slots:
            yield (
                f"training.global_batch_size {self.training.global_batch_size} is less than {count} × "
                f"training.gradient_accumulation_steps = {slots}: some workers would be idle; raise it, or lower those"
            )
        if self.scaling.is_elastic and self.training.global_batch_size is None and trains(info):
            yield (
                f"scaling.num_workers is {self.scaling.num_workers}, and the size of a step would change with it: set "
                "training.global_batch_size, without training.max_batch_duration_s"
            )
        if self.model.masks_features and self.augment.masks:
            yield (
                "model.apply_spec_augment and augment both mask features: set model.apply_spec_augment: false, or "
                "augment.time_masks: 0 and augment.frequency_masks: 0"
            )
        if self.adapt.method != "full" and self.training.checkpoints_reentrantly:
            yield (
                "training.training_args.gradient_checkpointing_kwargs has use_reentrant, which stops gradients at the "
                f"first frozen layer (adapt.method {self.adapt.method}): leave it out"
            )
        if self.model.dtype == "bfloat16" and self.adapt.method != "lora" and trains(info):
            yield (
                f"model.dtype is bfloat16, but adapt.method {self.adapt.method} trains the weights themselves; most "
                "updates are too small for bfloat16 and would be lost: set model.dtype: float32, with training.bf16: "
                "true to compute in bfloat16; or adapt.method: lora"
            )
        if self.training.fp16 and not self.scaling.use_gpu:
            yield "training.fp16 needs a GPU: set scaling.use_gpu: true, or training.fp16: false"
        if trains(info):
            yield from self._packing_misfits()
            yield from self.model.misfits(self.adapt, self.training, self.strategy)
            yield from strategy_misfits(self.strategy, self.adapt, self.training, self.scaling)

    def _packing_misfits(self) -> Iterator[str]:
        packed_s, previous = self.data.pack_segments_s, self.training.previous_text
        if previous and packed_s is None:
            yield (
                f"training.previous_text is {previous:g}, but only packed segments have a text before them: set "
                "data.pack_segments_s, or previous_text: 0"
            )
        longest = {"data.max_duration_s": self.data.max_duration_s, "model.max_context_s": self.model.max_context_s}
        for field, longest_s in longest.items():
            if packed_s is not None and longest_s is not None and packed_s > longest_s:
                yield (
                    f"data.pack_segments_s is {packed_s:g}, but clips longer than {field} {longest_s:g} are left out "
                    "of training: lower it, or raise that"
                )

    @rule
    def _accelerator_fits(self) -> Iterator[str]:
        if self.scaling.accelerator == "hpu":
            yield (
                "scaling.accelerator is hpu, but trainer: huggingface trains only on GPUs and CPUs; Gaudi needs its "
                "vendor's image, with other versions of torch and transformers: set trainer: script "
                "(docs/accelerators.md), or scaling.accelerator: cpu"
            )
        held = self.scaling.resources_per_worker
        idle = [name for name in UNUSED_ACCELERATORS if held.get(name)]
        if idle:
            yield (
                f"scaling.resources_per_worker.{idle[0]} is {held[idle[0]]:g}, but training uses only GPUs and CPUs: "
                f"remove scaling.resources_per_worker.{idle[0]}; scaling.use_gpu requests GPUs"
            )

    @rule
    def _gate_fits(self, info: ValidationInfo) -> Iterator[str]:
        conditions = self.checkpoint.conditions
        if trains(info) and not self.evaluate.base:
            for field in self.compared_with_base:
                yield f"{field} needs the scores of the initial weights: set evaluate.base: true"
        for name in sorted({each.set for each in conditions} - {VALIDATION, *self.evaluate.also}):
            if name in BUILT_IN_SETS and name not in SOUND_SETS:
                yield (
                    f"checkpoint.refuse_if has a condition on {name}, which is not scored at validations: name one of "
                    f"{', '.join((VALIDATION, *self.evaluate.also, *SOUND_SETS))}"
                )
            elif name not in SOUND_SETS:
                yield f"checkpoint.refuse_if has a condition on {name}: set evaluate.also.{name} to its manifest"
            elif self.evaluate.guard is None:
                yield f"checkpoint.refuse_if has a condition on {name}: set evaluate.guard: default, which scores it"

    @property
    def compared_with_base(self) -> list[str]:
        """The fields that need scores of the weights that the run begins with."""
        needed = {
            "checkpoint.refuse_if": any(each.of_base for each in self.checkpoint.conditions),
            "checkpoint.interpolate": bool(self.checkpoint.interpolate),
            "evaluate.require_better": self.evaluate.require_better,
        }
        return [field for field, is_needed in needed.items() if is_needed]

    @rule
    def _ranking_fits(self) -> Iterator[str]:
        attribute, order = self.checkpoint.checkpoint_score_attribute, self.checkpoint.checkpoint_score_order
        # Whether less or more is better, by metric; the recipe says so for its own metrics.
        orders = {f"eval_{name}": metric.order for name, metric in known_metrics().items()}
        orders |= {f"eval_{name}": order for name in self.scoring.metrics}
        if attribute is not None and attribute not in orders:
            yield (
                f"checkpoint.checkpoint_score_attribute: {attribute} is not a score that ranks checkpoints: give one "
                f"of {', '.join(orders)}, or add the metric to scoring.metrics"
            )
        elif order != (better := orders[attribute] if attribute is not None else "min"):
            yield (
                f"checkpoint.checkpoint_score_order is {order}, but {attribute or 'an error rate'} is better when "
                f"it is {'smaller' if better == 'min' else 'larger'}: set it to {better}"
            )


class ScriptConfig(Part):
    """One run of an unmodified program."""

    trainer: Literal["script"] = Field(description=TRAINER)
    run: RunPart = RunPart()
    script: ScriptPart
    scaling: ScalingPart = ScalingPart()
    job: Settings = Field(default_factory=dict, description=JOB)

    @rule
    def _begins_by_itself(self) -> None:
        if self.run.resume.startswith("from:"):
            raise ValueError(
                f"run.resume is {self.run.resume}, but only the program itself can load a checkpoint: set run.resume: "
                "auto, and give the program's own argument in script.command, such as "
                "--resume_from_checkpoint={s3:bucket/runs/sr/checkpoints/…/checkpoint-10/}"
            )

    @rule
    def _has_nothing_without_effect(self) -> Iterator[str]:
        run, script, scaling = self.run, self.script, self.scaling
        if run.seed != RunPart().seed:
            yield (
                f"run.seed is {run.seed}, which programs do not read: leave it out, and give the program's own "
                f"argument in script.command, such as --seed {run.seed}"
            )
        if scaling.backend != ScalingPart().backend:
            yield (
                f"scaling.backend is {scaling.backend}, but a program sets up its own process group: leave it out, and "
                f"give the backend in script.command, such as --ddp_backend {scaling.backend}"
            )
        if script.hpu_mode is not None and scaling.device != "hpu":
            yield (
                f"script.hpu_mode is {script.hpu_mode}, but no worker has a Gaudi: leave it out, or set "
                "scaling.accelerator: hpu"
            )
        if script.python is not None and not (script.is_python or is_python(script.prepare or ("",))):
            yield (
                f"script.python is {script.python}, but script.command begins with {script.command[0]}, which is not "
                "Python: leave it out, or begin the command with a .py file or -m"
            )


AnyConfig = TrainConfig | ScriptConfig
CONFIGS: Mapping[str, type[TrainConfig] | type[ScriptConfig]] = {"huggingface": TrainConfig, "script": ScriptConfig}


def trainer_of(content: Mapping[str, Any]) -> str:
    """Returns `trainer` in the content of a recipe, or its default; raises ConfigError if the value is unknown."""
    trainer = content.get("trainer", "huggingface")
    if not isinstance(trainer, str) or trainer not in CONFIGS:
        raise ConfigError(f"trainer: must be one of {', '.join(CONFIGS)} (got {trainer!r})")
    return trainer
