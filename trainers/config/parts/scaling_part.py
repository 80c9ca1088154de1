"""The config's scaling part: how many workers, and what each takes. See `schema`."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Discriminator, Field, Tag, ValidationInfo, model_validator

from trainers.config.parts.part import Part, is_new

# One logical CPU stays free for Ray Data while workers hold theirs (ray#41603: without it, a hang).
CPUS_FOR_DATA = 1.0
BACKEND = r"^[a-z0-9]+(:[a-z0-9]+(,[a-z0-9]+:[a-z0-9]+)*)?$"
# Ray counts ten-thousandths in 64 bits, also over all workers.
ResourceAmount = Annotated[float, Field(ge=0, le=1e14)]


MAX_WORKERS = 100_000
# Ray's names of accelerators that are no GPUs: a worker would hold them, and train on its CPUs.
UNUSED_ACCELERATORS = ("FURIOSA", "HPU", "MBLT", "NPU", "RBLN", "TPU", "TTNPU", "neuron_cores")
# How a run comes to need no GPU, whatever its recipe says.
WITHOUT_GPU = "set scaling.use_gpu: false and scaling.resources_per_worker.GPU: 0"


class WorkerRange(Part):
    """An elastic number of workers: as many as the cluster has room for, within bounds."""

    min: int = Field(gt=0, le=MAX_WORKERS, description="Fewest workers to train with; below, training waits.")
    max: int = Field(gt=0, le=MAX_WORKERS, description="Most workers to train with; a queue charges these.")

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}: exchange them")
        return self

    def __str__(self) -> str:
        return f"{self.min} to {self.max}"


# Kinds of `num_workers`, for the messages about a wrong one.
COUNT, RANGE = "a number", "a range"
WorkerCount = Annotated[
    Annotated[int, Field(gt=0, le=MAX_WORKERS), Tag(COUNT)] | Annotated[WorkerRange, Tag(RANGE)],
    Discriminator(lambda value: RANGE if isinstance(value, Mapping | BaseModel) else COUNT),
]


class ScalingPart(Part):
    """How many workers there are, and what each takes. Ray's words."""

    num_workers: WorkerCount = Field(
        1,
        description="Training workers, one process each. {min: 2, max: 8}: elastic, as many of them as the cluster has "
        "room for at any time; needs training.global_batch_size.",
    )
    use_gpu: bool = Field(False, description="One GPU for each worker.")
    resources_per_worker: dict[str, ResourceAmount] = Field(
        default_factory=dict,
        description="What each worker reserves, e.g. {CPU: 8, GPU: 1}. {}: 1 CPU, and a GPU if used.",
    )
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        "PACK", description="How Ray places the workers over the nodes."
    )
    backend: str = Field(
        "auto",
        pattern=BACKEND,
        description="What the process group of the workers communicates by: nccl, gloo or another of torch's, or one "
        "for each device, as cpu:gloo,cuda:nccl. auto: nccl on GPUs, else gloo.",
    )

    @model_validator(mode="after")
    def _backend_fits(self) -> Self:
        if self.backend == "nccl" and not self.use_gpu:
            raise ValueError("backend nccl needs GPUs, and use_gpu is false: set backend: gloo, or use_gpu: true")
        return self

    @model_validator(mode="after")
    def _devices_fit(self, info: ValidationInfo) -> Self:
        gpus = self.resources_per_worker.get("GPU")
        if gpus and not self.use_gpu:
            raise ValueError(
                f"resources_per_worker.GPU is {gpus:g}, and use_gpu is false: set scaling.use_gpu: true, or "
                "scaling.resources_per_worker.GPU: 0"
            )
        if gpus == 0 and self.use_gpu:
            raise ValueError("use_gpu is true, and resources_per_worker.GPU is 0: set use_gpu: false, or GPU: 1")
        idle = [name for name in UNUSED_ACCELERATORS if self.resources_per_worker.get(name)]
        if idle and is_new(info):
            raise ValueError(
                f"resources_per_worker.{idle[0]} is {self.resources_per_worker[idle[0]]:g}, but training runs on GPUs "
                f"and CPUs alone, and would hold each {idle[0]} without using it: remove {idle[0]}; on nodes with GPUs "
                "set use_gpu: true"
            )
        return self

    @model_validator(mode="after")
    def _placement_fits(self) -> Self:
        if self.is_elastic and self.placement_strategy.startswith("STRICT_"):
            soft = self.placement_strategy.removeprefix("STRICT_")
            raise ValueError(
                f"placement_strategy {self.placement_strategy} cannot be kept with num_workers {self.num_workers}: Ray "
                "counts how many workers the nodes have room for wherever they are, and would wait for a placement "
                f"that there may not be; set placement_strategy: {soft}, or num_workers: {self.max_workers}"
            )
        return self

    @property
    def is_elastic(self) -> bool:
        return isinstance(self.num_workers, WorkerRange)

    @property
    def min_workers(self) -> int:
        return self.num_workers.min if isinstance(self.num_workers, WorkerRange) else self.num_workers

    @property
    def max_workers(self) -> int:
        """Those that are charged."""
        return self.num_workers.max if isinstance(self.num_workers, WorkerRange) else self.num_workers

    @property
    def worker_resources(self) -> dict[str, float]:
        return {"CPU": 1.0, **({"GPU": 1.0} if self.use_gpu else {}), **self.resources_per_worker}
