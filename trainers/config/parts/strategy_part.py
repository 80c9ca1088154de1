"""The config's strategy part: the distribution of model, gradients and optimizer state over workers. See `schema`."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from trainers.config.parts.ds_config import AUTO, contradictions, ds_problems
from trainers.config.parts.part import NotNegative, Part, Positive, Settings, rule
from trainers.config.parts.scaling_part import ScalingPart
from trainers.config.parts.training_part import AdaptPart, TrainingPart

OffloadDevice = Literal["cpu", "nvme"]
DEFAULT_ZERO_STAGE = 2
# This fix replaces the complete part, since fields of another strategy would contradict the name.
WITHOUT_SHARDS = "set strategy: {name: ddp}"


class StrategyPart(Part):
    """Distribution of model, gradients and optimizer state over the workers."""

    name: Literal["ddp", "deepspeed", "fsdp"] = Field(
        "ddp",
        description="ddp: no sharding. deepspeed: ZeRO shards the optimizer's state, and in higher stages also "
        "gradients and weights. fsdp: FSDP2 shards all three; GPUs only.",
    )
    zero_stage: Literal[1, 2, 3] | None = Field(
        None,
        description="DeepSpeed: 1 shards the optimizer's state, 2 also gradients, 3 also weights. null: 2.",
    )
    offload_optimizer: OffloadDevice | None = Field(
        None,
        description="Move the optimizer's state from the device to here; nvme needs zero_stage 3. null: no.",
    )
    offload_param: OffloadDevice | None = Field(
        None, description="Move weights that are not in use from the device to here; needs zero_stage 3. null: no."
    )
    nvme_path: str | None = Field(
        None, description="Folder on each node's NVMe disk, for offloading to nvme. null: none."
    )
    reduce_bucket_size: Positive | None = Field(
        None, description="Gradients that are reduced at a time. Elements. null: DeepSpeed's default."
    )
    allgather_bucket_size: Positive | None = Field(
        None, description="Weights that stages 1 and 2 gather at a time. Elements. null: DeepSpeed's default."
    )
    stage3_prefetch_bucket_size: NotNegative | None = Field(
        None, description="Weights that stage 3 fetches ahead. Elements. null: DeepSpeed's default."
    )
    stage3_param_persistence_threshold: NotNegative | None = Field(
        None, description="Stage 3 does not shard smaller tensors. Elements. null: DeepSpeed's default."
    )
    overlap_comm: bool | None = Field(
        None, description="Reduce gradients during the backward pass. null: DeepSpeed's default."
    )
    ds_config: Settings | None = Field(
        None,
        description="DeepSpeed's own config instead of the fields above: its content, or the path of a ds_config.json, "
        "whose content replaces the path when the recipe is read. The Trainer of transformers fills in `auto`. null: "
        "made of the fields above.",
    )

    @rule
    def _fields_fit(self) -> Iterator[str]:
        # All fields but the name are DeepSpeed's.
        given = [name for name in type(self).model_fields if name != "name" and getattr(self, name) is not None]
        if given and self.name != "deepspeed":
            raise ValueError(
                f"strategy.{given[0]} is for DeepSpeed, but strategy.name is {self.name}: set strategy.name: "
                f"deepspeed, or strategy: {{name: {self.name}}}"
            )
        typed = ", ".join(name for name in given if name != "ds_config")
        if self.ds_config is not None and typed:
            raise ValueError(
                f"strategy.ds_config is the complete DeepSpeed config: write {typed} into it, and leave the fields out"
            )
        yield from self._offload_problems() if self.ds_config is None else ds_problems(self.ds_config)

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

    def _offload_problems(self) -> Iterator[str]:
        if self.offload_param is not None and self.stage != 3:
            yield (
                f"strategy.offload_param {self.offload_param} needs sharded weights: set strategy.zero_stage: 3, or "
                "strategy.offload_param: null"
            )
        if self.offload_optimizer == "nvme" and self.stage != 3:
            yield (
                f"strategy.offload_optimizer nvme needs strategy.zero_stage: 3 (got {self.stage}); stages 1 and 2 "
                "offload to cpu"
            )
        to_nvme = "nvme" in (self.offload_optimizer, self.offload_param)
        if to_nvme and self.nvme_path is None:
            yield "strategy.nvme_path: missing; give a folder on each node's NVMe disk, e.g. /local_nvme"
        if self.nvme_path is not None and not to_nvme:
            yield (
                f"strategy.nvme_path {self.nvme_path} has no effect: set strategy.nvme_path: null, or "
                "strategy.offload_optimizer: nvme and strategy.zero_stage: 3"
            )


def ds_config_of(part: StrategyPart) -> dict[str, Any]:
    """Returns the DeepSpeed config of a strategy, with `auto` values that the Trainer fills in. Pure.

    Source: https://www.deepspeed.ai/docs/config-json/
    """
    if part.ds_config is not None:
        # The schedule is the Trainer's, so that a continued or extended run keeps it.
        return {name: value for name, value in part.ds_config.items() if name != "scheduler"}
    names = ["reduce_bucket_size", "allgather_bucket_size", "overlap_comm"]
    zero: dict[str, Any] = {"stage": part.stage}
    if part.stage == 3:
        # Despite its name, this gathers weights in the training precision, for each checkpoint's model.safetensors.
        zero["stage3_gather_16bit_weights_on_model_save"] = True
        names += ["stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"]
    zero |= {name: value for name in names if (value := getattr(part, name)) is not None}
    for name in ("offload_optimizer", "offload_param"):
        device = getattr(part, name)
        if device is not None:
            zero[name] = {"device": device, **({"nvme_path": part.nvme_path} if device == "nvme" else {})}
    # Offloading to CPUs uses the Trainer's AdamW, so that weights are the same as without offloading.
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


def strategy_misfits(
    part: StrategyPart, adapt: AdaptPart, training: TrainingPart, scaling: ScalingPart
) -> Iterator[str]:
    """Yields each conflict of the strategy with the rest of the recipe."""
    if part.name == "fsdp" and not scaling.use_gpu:
        yield (
            "strategy.name fsdp needs GPUs, but scaling.use_gpu is false: set scaling.use_gpu: true, or shard on CPUs "
            "with strategy.name: deepspeed"
        )
    if part.is_sharded and adapt.method == "lora":
        yield (
            f"strategy.name {part.name} shards weights that adapt.method lora does not train; the optimizer of an "
            f"adapter is small: {WITHOUT_SHARDS}"
        )
    if part.is_sharded and scaling.is_elastic:
        yield (
            f"strategy.name {part.name} stores each worker's shard in a checkpoint, which another number of workers "
            f"cannot load, but scaling.num_workers is {scaling.num_workers}: {WITHOUT_SHARDS}, or "
            f"scaling.num_workers: {scaling.max_workers}"
        )
    if part.ds_config is not None and not ds_problems(part.ds_config):
        yield from contradictions(part.ds_config, training, scaling.max_workers)
    if part.offload_optimizer == "nvme" and "optim" in training.training_args:
        unused = "" if part.offload_param == "nvme" else " and strategy.nvme_path: null"
        yield (
            f"training.training_args.optim is {training.training_args['optim']}, but only DeepSpeed's AdamW can keep "
            "its state on NVMe: remove training.training_args.optim, or set strategy.offload_optimizer: "
            f"cpu{unused}"
        )
