"""Parts of a ClusterSpec: its nodes, and settings of single targets, except `ray_up`, which a provider defines."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from trainers.config.parts.part import NotNegative, Part, Positive
from trainers.config.submitted import GROWTH_VARIABLE, growth_text

DNS_LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
SLURM_TIME = r"^(\d+-)?\d{1,2}:\d{2}:\d{2}$"
SGE_TIME = r"^\d+:\d{2}:\d{2}$"
# Kubernetes' form, which Ray's labels follow (ray/_private/label_utils.py).
LABEL_KEY = r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$"
# Ray's names of resources, by hardware.
RESOURCE = {"cpu": "CPU", "cuda": "GPU", "rocm": "GPU", "hpu": "HPU"}

Word = Annotated[str, StringConstraints(pattern=r"^[^\s'\"$`;|&<>\\#]+$")]
# Written on a line of its own in a script, after the scheduler's prefix.
Option = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$")]
DnsLabel = Annotated[str, StringConstraints(pattern=DNS_LABEL)]
Hardware = Literal["cpu", "cuda", "rocm", "hpu"]
LabelKey = Annotated[str, StringConstraints(pattern=LABEL_KEY)]
LabelValue = Annotated[str, StringConstraints(pattern=LABEL_VALUE)]


def _clock(value: object) -> object:
    """Formats a time that YAML has read as a number of base 60, as it does with an unquoted 24:00:00."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return f"{value // 3600:02}:{value // 60 % 60:02}:{value % 60:02}"


SlurmTime = Annotated[str, StringConstraints(pattern=SLURM_TIME), BeforeValidator(_clock)]
SgeTime = Annotated[str, StringConstraints(pattern=SGE_TIME), BeforeValidator(_clock)]


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
    cpus: Positive = Field(4, description="CPUs of a node. If left out for own hosts, as many as Ray finds.")
    memory_gb: Positive = Field(16, description="Memory of a node. GB.")
    instance: Word | None = Field(
        None, description="Instance type of the cloud, e.g. g6.12xlarge. null: not on a cloud."
    )
    min: NotNegative = Field(0, description="Smallest number of nodes.")
    max: Positive = Field(1, description="Largest number of nodes.")
    spot: bool = Field(False, description="Spot instances: cheaper, but preempted at short notice.")
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
    """Returns variables that tell jobs the cluster's largest size, for which Ray has no API."""
    most: dict[str, float] = {"CPU": head.ray_cpus}
    for pool in pools.values():
        for name, each in pool.resources.items():
            most[name] = most.get(name, 0) + pool.max * each
    return {GROWTH_VARIABLE: growth_text(most)}


class KubernetesPart(Part):
    """Settings of KubeRay's RayCluster and RayJob."""

    namespace: DnsLabel = Field("default", description="Namespace of everything in the file.")
    queue: DnsLabel | None = Field(
        None,
        description="Kueue's LocalQueue that admits the cluster or the job, with all pools at their `max`. null: no "
        "queue, and the pools grow from `min` to `max`.",
    )
    service_account: DnsLabel | None = Field(
        None,
        description="Service account of the pods, made by the file, without any rights. null: the cluster's name and "
        "-raycluster or -rayjob.",
    )
    token_secret: DnsLabel | None = Field(
        None, description="Secret with Ray's token under the key auth_token. null: the cluster's name and -token."
    )
    storage_claim: DnsLabel | None = Field(
        None,
        description="PersistentVolumeClaim (ReadWriteMany) that is mounted at `storage` in every pod. null: `storage` "
        "is a URL.",
    )
    image_pull_secrets: list[DnsLabel] = Field([], description="Secrets that pull the image.")
    node_selectors: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        description="Labels of the nodes of a pool, by pool, e.g. {spot: {cloud.google.com/gke-spot: 'true'}}. Spot "
        "pools need them: all other pods avoid these nodes.",
    )
    tolerations: dict[str, list[dict[str, str]]] = Field(
        default_factory=dict,
        description="Taints of nodes that a pool's pods tolerate, next to that of its device, by pool, e.g. {spot: "
        "[{key: cloud.google.com/gke-spot, operator: Equal, value: 'true', effect: NoSchedule}]}.",
    )
    clients: dict[str, str] = Field(
        default_factory=dict,
        description="Labels of pods of this namespace that may connect to the dashboard's port, next to KubeRay's "
        "operator. {}: none.",
    )
    operator_namespace: DnsLabel = Field("kuberay-operator", description="Namespace of KubeRay's operator.")
    monitoring_namespace: DnsLabel | None = Field(
        None, description="Namespace whose pods may read the metrics, e.g. monitoring. null: none."
    )
    active_deadline_s: Positive | None = Field(
        None, description="Seconds after which a RayJob is stopped. null: never."
    )
    ttl_after_finished_s: NotNegative = Field(
        3600, description="Seconds that the cluster of a RayJob stays after the job has ended, for its logs."
    )


class SlurmPart(Part):
    """Settings of a Slurm batch job. It runs on as many complete nodes as the pool's `max`."""

    pool: str | None = Field(None, description="Pool that describes the nodes. null: the only pool.")
    partition: Word | None = Field(None, description="Partition. null: the site's default.")
    account: Word | None = Field(None, description="Account that is charged. null: the user's default.")
    qos: Word | None = Field(None, description="Quality of service. null: the site's default.")
    time_limit: SlurmTime = Field("24:00:00", description="Longest time that the job runs at a stretch, [D-]HH:MM:SS.")
    signal_s: Positive = Field(
        300, description="Seconds before the time limit at which the run is told to save a checkpoint and to end."
    )
    requeue: bool = Field(True, description="Queue the job again after its time limit or a lost node; it continues.")
    gpu_option: Literal["gres", "gpus-per-node"] = Field(
        "gres", description="How this site's jobs ask for GPUs: --gres=gpu:TYPE:N or --gpus-per-node=TYPE:N."
    )
    output: Word = Field("%x-%j.out", description="File of the output; %x is the job's name, %j its number.")
    options: list[Option] = Field([], description="Further #SBATCH options, e.g. --constraint=nvlink.")


class SgePart(Part):
    """Settings of a Grid Engine batch job. It runs on one host."""

    pool: str | None = Field(None, description="Pool that describes the host. null: the only pool.")
    parallel_environment: Word = Field("mthread", description="Parallel environment whose slots lie on one host.")
    slots: Positive | None = Field(None, description="Slots (CPUs) of the job. null: the pool's cpus.")
    queue: Word | None = Field(None, description="Queue. null: the one that the resources choose.")
    project: Word | None = Field(None, description="Project that is charged. null: the user's default.")
    gpu_resource: Word | None = Field("gpu", description="Resource that requests GPUs. null: not requested.")
    gpu_arch: Word | None = Field(None, description="Value of the resource gpu_arch, e.g. l40s. null: any.")
    memory: dict[str, Word] = Field(
        default_factory=dict, description="Memory resources of this site, e.g. {h_vmem: 8G}; most count per slot."
    )
    time_limit: SgeTime | None = Field(
        None, description="Longest time that the job runs at a stretch, HH:MM:SS (h_rt). null: the queue's."
    )
    signal_s: Positive = Field(
        300, description="Seconds before the time limit at which the run is told to save a checkpoint and to end."
    )
    requeue: bool = Field(True, description="Queue the job again after its time limit; it continues.")
    output: str = Field(
        "$JOB_NAME.$JOB_ID.log", pattern=r"^[^\s'\"`;|&<>]+$", description="File of the output and errors (-o, -j y)."
    )
    options: list[Option] = Field([], description="Further #$ options, e.g. -l avx2.")
