"""The nodes of a ClusterSpec, whatever provides them: the head, and the pools."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from cluster_configs.rendering.target_parts import Word
from trainers.config.parts.part import NotNegative, Part, Positive
from trainers.config.submitted import GROWTH_VARIABLE, growth_text

# Kubernetes' form, which Ray's labels follow (ray/_private/label_utils.py).
LABEL_KEY = r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$"
# Ray's names of what it counts, by hardware.
RESOURCE = {"cpu": "CPU", "cuda": "GPU", "rocm": "GPU", "hpu": "HPU"}

Hardware = Literal["cpu", "cuda", "rocm", "hpu"]
LabelKey = Annotated[str, StringConstraints(pattern=LABEL_KEY)]
LabelValue = Annotated[str, StringConstraints(pattern=LABEL_VALUE)]


class HeadPart(Part):
    """The head node. It runs Ray's control processes and the jobs' drivers."""

    cpus: Positive = Field(4, description="CPUs of the node.")
    ray_cpus: NotNegative = Field(
        0, description="CPUs of the node that Ray gives to tasks and actors, next to the jobs' drivers. 0: none."
    )
    memory_gb: Positive = Field(16, description="Memory of the node. GB.")
    instance: Word | None = Field(
        None, description="Instance type of the cloud, e.g. m7i.xlarge. null: not on a cloud."
    )


class PoolPart(Part):
    """Nodes of one kind."""

    hardware: Hardware = Field("cpu", description="cpu, cuda (NVIDIA), rocm (AMD) or hpu (Intel Gaudi).")
    accelerators: NotNegative = Field(0, description="GPUs or HPUs of a node.")
    accelerator_type: Word | None = Field(
        None, description="Their type in the target's own words, e.g. a100 for Slurm, nvidia-l4 for GCP. null: any."
    )
    cpus: Positive = Field(4, description="CPUs of a node. Left out for own hosts: as many as Ray finds.")
    memory_gb: Positive = Field(16, description="Memory of a node. GB.")
    instance: Word | None = Field(
        None, description="Instance type of the cloud, e.g. g6.12xlarge. null: not on a cloud."
    )
    min: NotNegative = Field(0, description="Nodes that are always there.")
    max: Positive = Field(1, description="Nodes at most.")
    spot: bool = Field(False, description="Spot instances: cheaper, and taken away at short notice.")
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Ray labels of the nodes, next to `pool`: the pool's name."
    )

    @model_validator(mode="after")
    def _counts_fit(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is greater than max ({self.max})")
        if self.hardware == "cpu" and self.accelerators:
            raise ValueError(
                "hardware: cpu has no accelerators: set hardware to cuda, rocm or hpu, or accelerators to 0"
            )
        if self.hardware != "cpu" and not self.accelerators:
            raise ValueError(f"hardware: {self.hardware} needs accelerators: how many a node has, e.g. accelerators: 4")
        if self.hardware != "cpu" and self.cpus <= self.accelerators:
            raise ValueError(
                f"cpus ({self.cpus}) leaves none for data next to one for each accelerator ({self.accelerators})"
            )
        return self

    @property
    def resources(self) -> dict[str, int]:
        return {"CPU": self.cpus, **({RESOURCE[self.hardware]: self.accelerators} if self.accelerators else {})}


def growth_variables(head: HeadPart, pools: Mapping[str, PoolPart]) -> dict[str, str]:
    """What the head tells its jobs: how far the cluster can grow. Pools may be empty, and Ray has no call for it."""
    most: dict[str, float] = {"CPU": head.ray_cpus}
    for pool in pools.values():
        for name, each in pool.resources.items():
            most[name] = most.get(name, 0) + pool.max * each
    return {GROWTH_VARIABLE: growth_text(most)}
