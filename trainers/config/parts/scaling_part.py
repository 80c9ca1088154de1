"""The config's scaling part: the number of workers, and their resources. See `schema`."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Discriminator, Field, Tag, model_validator

from trainers.config.parts.part import Part, PositiveFloat, rule
from trainers.config.parts.run_part import NAME

# One logical CPU stays free for Ray Data while workers hold theirs; otherwise the run hangs (ray#41603).
CPUS_FOR_DATA = 1.0
BACKEND = r"^[a-z0-9]+(:[a-z0-9]+(,[a-z0-9]+:[a-z0-9]+)*)?$"
# Ray counts ten-thousandths of a resource in 64 bits, which also limits the sum over all workers.
ResourceAmount = Annotated[float, Field(ge=0, le=1e14)]


MAX_WORKERS = 100_000
# The settings with which a run requires no GPU, whatever its recipe says.
WITHOUT_GPU = "set scaling.use_gpu: false and scaling.resources_per_worker.GPU: 0"
AcceleratorName = Literal["auto", "cpu", "cuda", "rocm", "hpu"]
# Accelerators that Ray counts as GPU; auto is cuda or rocm, whichever a node has.
GPU_ACCELERATORS = ("auto", "cuda", "rocm")
HPU = "HPU"
# Ray's resource for nodes with an accelerator type is named by this prefix and the type. Each such node has 1 of it,
# and a worker that requires the type takes this share (ray.util.accelerators, ray.air.ScalingConfig).
TYPE_PREFIX, TYPE_SHARE = "accelerator_type:", 0.001
# Ray's rules for labels are those of Kubernetes: https://docs.ray.io/en/latest/ray-core/scheduling/labels.html
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL = re.compile(rf"(?:[A-Za-z0-9.-]{{1,253}}/)?{_WORD}")
_CONDITION = re.compile(rf"(?P<no>!?)(?:in\((?P<several>{_WORD}(?:, ?{_WORD})*)\)|(?P<one>{_WORD}))")


def _refuse_unreadable(selector: dict[str, str]) -> dict[str, str]:
    """Returns a label selector unchanged; refuses one that Ray cannot read."""
    for label, condition in selector.items():
        if _LABEL.fullmatch(label) is None:
            raise ValueError(f"{label!r} is not a label's name, such as pool or ray.io/accelerator-type")
        if _CONDITION.fullmatch(condition) is None:
            raise ValueError(
                f"{label}: {condition!r} is not a condition: give a value, !value, in(a, b) or !in(a, b), in quotes"
            )
    return selector


class WorkerRange(Part):
    """An elastic number of workers: as many as fit on the cluster, within bounds."""

    min: int = Field(gt=0, le=MAX_WORKERS, description="Minimum number of workers; training waits until they fit.")
    max: int = Field(gt=0, le=MAX_WORKERS, description="Maximum number of workers, which a queue charges.")

    @rule
    def _bounds_fit(self) -> None:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}: exchange them")

    def __str__(self) -> str:
        return f"{self.min} to {self.max}"


# Kinds of `num_workers`, as messages about a wrong value name them.
COUNT, RANGE = "a number", "a range"
WorkerCount = Annotated[
    Annotated[int, Field(gt=0, le=MAX_WORKERS), Tag(COUNT)] | Annotated[WorkerRange, Tag(RANGE)],
    Discriminator(lambda value: RANGE if isinstance(value, Mapping | BaseModel) else COUNT),
]


class ScalingPart(Part):
    """The number of workers, and the resources of each, in Ray's terms."""

    num_workers: WorkerCount = Field(
        1,
        description="Training workers, one process each. {min: 2, max: 8}: elastic, as many as fit on the cluster at "
        "any time; needs training.global_batch_size.",
    )
    use_gpu: bool = Field(False, description="One GPU of any vendor for each worker: short for accelerator: auto.")
    accelerator: AcceleratorName | None = Field(
        None,
        description="Device of each worker; resources_per_worker can set their number. auto: any GPU. cuda: an NVIDIA "
        "GPU. rocm: an AMD GPU. hpu: an Intel Gaudi, only with trainer: script. cpu: none. null: auto with use_gpu: "
        "true, else cpu.",
    )
    accelerator_type: str | None = Field(
        None,
        pattern=NAME,
        description="Place workers on nodes with this type of accelerator, by its name in Ray, e.g. A100 or "
        "AMD-Instinct-MI300X-OAM. null: any.",
    )
    label_selector: Annotated[dict[str, str], AfterValidator(_refuse_unreadable)] = Field(
        default_factory=dict,
        description="Place workers on nodes whose labels meet these conditions, in Ray's notation: {pool: gaudi}, "
        '{pool: "!spot"}, {"ray.io/accelerator-type": "in(A100, H100)"}. {}: any node.',
    )
    resources_per_worker: dict[str, ResourceAmount] = Field(
        default_factory=dict,
        description="Resources that each worker reserves, e.g. {CPU: 8, GPU: 1}. {}: 1 CPU, and its accelerator.",
    )
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        "PACK", description="How Ray distributes the workers over the nodes."
    )
    backend: str = Field(
        "auto",
        pattern=BACKEND,
        description="Backend of torch's process group: nccl, gloo or another, or one for each device, as "
        "cpu:gloo,cuda:nccl. auto: nccl on GPUs, else gloo.",
    )
    price_per_gpu_hour: PositiveFloat | None = Field(
        None,
        description="Price of an hour of one accelerator, or of one worker without accelerators, in any currency, for "
        "the cost of each attempt in the run's report. null: not known.",
    )

    @model_validator(mode="before")
    @classmethod
    def _gpu_is_used(cls, content: Any) -> Any:
        """Sets `use_gpu: true` if it is left out and the accelerator is a GPU."""
        if isinstance(content, Mapping) and content.get("accelerator") in GPU_ACCELERATORS:
            return {"use_gpu": True, **content}
        return content

    @rule
    def _accelerator_fits(self) -> Iterator[str]:
        is_gpu = self.accelerator in GPU_ACCELERATORS
        if self.accelerator is not None and is_gpu != self.use_gpu:
            use_gpu, other = str(self.use_gpu).lower(), str(is_gpu).lower()
            yield (
                f"accelerator is {self.accelerator}, but use_gpu is {use_gpu}: set scaling.use_gpu: {other}, or "
                f"scaling.accelerator: {'auto' if self.use_gpu else 'cpu'}"
            )
        if self.accelerator_type is not None and self.device == "cpu":
            yield (
                f"accelerator_type is {self.accelerator_type}, but no worker has an accelerator: set use_gpu: true, or "
                "accelerator_type: null"
            )
        hpus = self.resources_per_worker.get(HPU)
        if hpus == 0 and self.accelerator == "hpu":
            yield (
                "accelerator is hpu, but resources_per_worker.HPU is 0: set scaling.accelerator: cpu, or "
                "scaling.resources_per_worker.HPU: 1"
            )
        if hpus and hpus != int(hpus):
            yield f"resources_per_worker.HPU is {hpus:g}, but Gaudis cannot be shared: give a whole number"

    @rule
    def _backend_fits(self) -> Iterator[str]:
        if self.backend == "nccl" and not self.use_gpu:
            gpus = ", or scaling.use_gpu: true" if self.device == "cpu" and self.accelerator is None else ""
            yield f"backend nccl needs GPUs, but use_gpu is false: set scaling.backend: auto{gpus}"
        if self.backend == "hccl" and self.device != "hpu":
            gaudi = "" if self.use_gpu else ", or scaling.accelerator: hpu"
            yield f"backend hccl is for Gaudi: set scaling.backend: auto{gaudi}"

    @rule
    def _gpus_fit(self) -> Iterator[str]:
        gpus = self.resources_per_worker.get("GPU")
        if gpus and not self.use_gpu:
            yield (
                f"resources_per_worker.GPU is {gpus:g}, but use_gpu is false: set scaling.use_gpu: true, or "
                "scaling.resources_per_worker.GPU: 0"
            )
        if gpus == 0 and self.use_gpu:
            yield (
                "use_gpu is true, but resources_per_worker.GPU is 0: set scaling.use_gpu: false, or "
                "scaling.resources_per_worker.GPU: 1"
            )

    @rule
    def _placement_fits(self) -> None:
        if self.is_elastic and self.placement_strategy.startswith("STRICT_"):
            soft = self.placement_strategy.removeprefix("STRICT_")
            raise ValueError(
                f"placement_strategy {self.placement_strategy} does not work with num_workers {self.num_workers}: Ray "
                "counts the workers that fit on all nodes, and may then wait forever for their placement; set "
                f"placement_strategy: {soft}, or num_workers: {self.max_workers}"
            )

    @property
    def is_elastic(self) -> bool:
        return isinstance(self.num_workers, WorkerRange)

    @property
    def min_workers(self) -> int:
        return self.num_workers.min if isinstance(self.num_workers, WorkerRange) else self.num_workers

    @property
    def max_workers(self) -> int:
        """The largest number of workers, which the queue charges."""
        return self.num_workers.max if isinstance(self.num_workers, WorkerRange) else self.num_workers

    @property
    def device(self) -> AcceleratorName:
        """The device of each worker, derived from other fields if `accelerator` is not set."""
        if self.accelerator is not None:
            return self.accelerator
        if self.use_gpu:
            return "auto"
        return "hpu" if self.resources_per_worker.get(HPU) else "cpu"

    @property
    def worker_resources(self) -> dict[str, float]:
        """The resources that each worker reserves, by Ray's names."""
        devices = {"GPU": 1.0} if self.use_gpu else {HPU: 1.0} if self.device == "hpu" else {}
        types = {f"{TYPE_PREFIX}{self.accelerator_type}": TYPE_SHARE} if self.accelerator_type else {}
        return {"CPU": 1.0, **devices, **types, **self.resources_per_worker}

    def idle_gpus(self, held: Mapping[str, float]) -> str | None:
        """Returns a note if the cluster has GPUs in `held` but no worker requests one; None if that is intended."""
        is_meant = "use_gpu" in self.model_fields_set or self.accelerator is not None
        if is_meant or self.device != "cpu" or not held.get("GPU"):
            return None
        return (
            f"no worker requests a GPU, but the cluster has {held['GPU']:g}: set scaling.use_gpu: true (--use-gpu of "
            "rayscribe launch), or scaling.accelerator: cpu to train on CPUs"
        )

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Returns True if a node with these labels may run workers."""
        return all(_holds(condition, labels.get(label)) for label, condition in self.label_selector.items())


def _holds(condition: str, value: str | None) -> bool:
    """Returns True if a label's value meets a condition; without the label (None), only a condition with `!` is met."""
    parts = _CONDITION.fullmatch(condition)
    assert parts is not None, "the part checks its selectors"
    values = re.split(", ?", parts["several"] or parts["one"])
    return (value in values) != bool(parts["no"])
