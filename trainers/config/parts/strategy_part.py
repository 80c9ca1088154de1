"""The config's strategy part: the distribution of model, gradients and optimizer state over workers. See `schema`."""

from typing import Any, Literal, Self

from pydantic import Field

from trainers.config.parts.ds_config import AUTO, contradictions, faults_of
from trainers.config.parts.part import NotNegative, Part, Positive, Settings, rule
from trainers.config.parts.scaling_part import ScalingPart
from trainers.config.parts.training_part import AdaptPart, TrainingPart

OffloadDevice = Literal["cpu", "nvme"]
DEFAULT_ZERO_STAGE = 2
# Replaces the complete part: fields of another strategy would contradict the name.
WITHOUT_SHARDS = "set strategy: {name: ddp}"


class StrategyPart(Part):
    """Distribution of model, gradients and optimizer state over the workers."""

    name: Literal["ddp", "deepspeed", "fsdp"] = Field(
        "ddp",
        description="ddp: every worker holds everything. deepspeed: ZeRO shards the optimizer's state, and with higher "
        "stages gradients and weights. fsdp: FSDP2 shards all of them; GPUs only.",
    )
    zero_stage: Literal[1, 2, 3] | None = Field(
        None,
        description="What DeepSpeed shards. 1: the optimizer's state. 2: gradients too. 3: weights too. null: 2.",
    )
    offload_optimizer: OffloadDevice | None = Field(
        None,
        description="Where DeepSpeed keeps the optimizer's state instead of the device; nvme needs zero_stage 3. "
        "null: on the device.",
    )
    offload_param: OffloadDevice | None = Field(
        None, description="Where DeepSpeed keeps weights that are not in use; needs zero_stage 3. null: on the device."
    )
    nvme_path: str | None = Field(
        None, description="Folder on each node's own NVMe disk, for offloading to nvme. null: none."
    )
    reduce_bucket_size: Positive | None = Field(
        None, description="Gradients that are reduced at a time, in elements. null: DeepSpeed's own."
    )
    allgather_bucket_size: Positive | None = Field(
        None, description="Weights that stages 1 and 2 gather at a time, in elements. null: DeepSpeed's own."
    )
    stage3_prefetch_bucket_size: NotNegative | None = Field(
        None, description="Weights that stage 3 fetches ahead, in elements. null: DeepSpeed's own."
    )
    stage3_param_persistence_threshold: NotNegative | None = Field(
        None, description="Smaller tensors are not sharded by stage 3, in elements. null: DeepSpeed's own."
    )
    overlap_comm: bool | None = Field(
        None, description="Reduce gradients during the backward pass. null: DeepSpeed's own."
    )
    ds_config: Settings | None = Field(
        None,
        description="DeepSpeed's own config in place of the fields above: its content, or the path of a ds_config.json "
        "whose content takes the path's place when the recipe is read. `auto` is filled in as transformers' Trainer "
        "does. null: made from the fields above.",
    )

    @rule
    def _fields_fit(self) -> Self:
        # All fields but the name are DeepSpeed's.
        given = [name for name in type(self).model_fields if name != "name" and getattr(self, name) is not None]
        if given and self.name != "deepspeed":
            raise ValueError(
                f"strategy.{given[0]} is DeepSpeed's, but strategy.name is {self.name}: set strategy.name: deepspeed, "
                f"or strategy: {{name: {self.name}}}"
            )
        typed = ", ".join(name for name in given if name != "ds_config")
        if self.ds_config is not None and typed:
            raise ValueError(
                f"strategy.ds_config is the complete DeepSpeed config: write {typed} into it, and set "
                "the fields to null"
            )
        problems = self._offload_problems() if self.ds_config is None else faults_of(self.ds_config)
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def stage(self) -> int:
        if self.name != "deepspeed":
            return 0
        if self.ds_config is not None:
            return int(self.ds_config["zero_optimization"]["stage"])
        return self.zero_stage or DEFAULT_ZERO_STAGE

    @property
    def is_sharded(self) -> bool:
        """True if each worker holds, and writes into a checkpoint, only its own shard."""
        return self.name != "ddp"

    @property
    def shards_weights(self) -> bool:
        """True if no worker holds all weights during a training step."""
        return self.name == "fsdp" or self.stage == 3

    def _offload_problems(self) -> list[str]:
        problems = []
        if self.offload_param is not None and self.stage != 3:
            problems.append(
                f"strategy.offload_param {self.offload_param} needs weights that are sharded: set strategy.zero_stage: "
                "3, or strategy.offload_param: null"
            )
        if self.offload_optimizer == "nvme" and self.stage != 3:
            problems.append(
                f"strategy.offload_optimizer nvme needs strategy.zero_stage: 3 (got {self.stage}); stages 1 and 2 "
                "offload to cpu"
            )
        to_nvme = "nvme" in (self.offload_optimizer, self.offload_param)
        if to_nvme and self.nvme_path is None:
            problems.append("strategy.nvme_path: missing; name a folder on each node's NVMe disk, e.g. /local_nvme")
        if self.nvme_path is not None and not to_nvme:
            problems.append(
                f"strategy.nvme_path {self.nvme_path} has no effect: set strategy.nvme_path: null, or "
                "strategy.offload_optimizer: nvme and strategy.zero_stage: 3"
            )
        return problems


def ds_config_of(part: StrategyPart) -> dict[str, Any]:
    """Returns the DeepSpeed config of a strategy, with `auto` values that the Trainer fills in. Pure.

    Source: https://www.deepspeed.ai/docs/config-json/
    """
    if part.ds_config is not None:
        # The Trainer has the schedule, so that a continued or extended run keeps it.
        return {name: value for name, value in part.ds_config.items() if name != "scheduler"}
    names = ["reduce_bucket_size", "allgather_bucket_size", "overlap_comm"]
    zero: dict[str, Any] = {"stage": part.stage}
    if part.stage == 3:
        # Despite its name, gathers weights in the training precision, for each checkpoint's model.safetensors.
        zero["stage3_gather_16bit_weights_on_model_save"] = True
        names += ["stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"]
    zero |= {name: value for name in names if (value := getattr(part, name)) is not None}
    for name in ("offload_optimizer", "offload_param"):
        device = getattr(part, name)
        if device is not None:
            zero[name] = {"device": device, **({"nvme_path": part.nvme_path} if device == "nvme" else {})}
    # On CPUs, uses the Trainer's AdamW, so that weights are the same as without offloading.
    own = {"zero_force_ds_cpu_optimizer": False} if part.offload_optimizer == "cpu" else {}
    return {
        **own,
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": AUTO,
        "gradient_clipping": AUTO,
        "fp16": {"enabled": AUTO},
        "bf16": {"enabled": AUTO},
        "zero_optimization": zero,
    }


def refuse_contradictions(part: StrategyPart, adapt: AdaptPart, training: TrainingPart, scaling: ScalingPart) -> None:
    """Raises ValueError if the rest of the recipe does not allow the strategy."""
    problems = []
    if part.name == "fsdp" and not scaling.use_gpu:
        problems.append(
            "strategy.name fsdp needs GPUs, and scaling.use_gpu is false: set scaling.use_gpu: true, or shard on CPUs "
            "with strategy.name: deepspeed"
        )
    if part.is_sharded and adapt.method == "lora":
        problems.append(
            f"strategy.name {part.name} shards what adapt.method lora does not train: an adapter's optimizer is small; "
            f"{WITHOUT_SHARDS}"
        )
    if part.is_sharded and scaling.is_elastic:
        problems.append(
            f"strategy.name {part.name} stores a checkpoint as a shard of each worker, which another number of "
            f"workers does not load, and scaling.num_workers is {scaling.num_workers}: {WITHOUT_SHARDS}, or "
            f"scaling.num_workers: {scaling.max_workers}"
        )
    if part.ds_config is not None and not faults_of(part.ds_config):
        problems += contradictions(part.ds_config, training, scaling.max_workers)
    if part.offload_optimizer == "nvme" and "optim" in training.training_args:
        unused = "" if part.offload_param == "nvme" else " and strategy.nvme_path: null"
        problems.append(
            f"training.training_args.optim is {training.training_args['optim']}, but an optimizer whose state is on "
            "NVMe is DeepSpeed's AdamW: remove training.training_args.optim, or set strategy.offload_optimizer: "
            f"cpu{unused}"
        )
    if problems:
        raise ValueError("; ".join(problems))
