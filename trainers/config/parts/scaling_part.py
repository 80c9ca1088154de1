"""The config's scaling part: how many workers, and what each takes. See `schema`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainers.config.parts.part import Part, Positive

# One logical CPU stays free for Ray Data while workers hold theirs (ray#41603: without it, a hang).
CPUS_FOR_DATA = 1.0
BACKEND = r"^[a-z0-9]+(:[a-z0-9]+(,[a-z0-9]+:[a-z0-9]+)*)?$"
# Ray counts ten-thousandths in 64 bits, also over all workers.
ResourceAmount = Annotated[float, Field(ge=0, le=1e14)]


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

    @property
    def worker_resources(self) -> dict[str, float]:
        """Logical resources of one worker, Ray's defaults filled in."""
        return {"CPU": 1.0, **({"GPU": 1.0} if self.use_gpu else {}), **self.resources_per_worker}
