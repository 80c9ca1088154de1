"""What one target needs beside the rest of a ClusterSpec: `ray_up`, `kubernetes`, `slurm`, `sge`."""

import re
from ipaddress import ip_address
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from trainers.config.parts.part import NotNegative, Part, Positive

DNS_LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
SLURM_TIME = r"^(\d+-)?\d{1,2}:\d{2}:\d{2}$"
SGE_TIME = r"^\d+:\d{2}:\d{2}$"

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?")
Word = Annotated[str, StringConstraints(pattern=r"^[^\s'\"$`;|&<>\\#]+$")]
DnsLabel = Annotated[str, StringConstraints(pattern=DNS_LABEL)]


def _host(value: str) -> str:
    if HOST.fullmatch(value) is None:
        raise ValueError("must be an address or a host name, as 10.0.0.1")
    if re.fullmatch(r"[\d.]+", value):
        try:
            ip_address(value)
        except ValueError:
            raise ValueError("is no IPv4 address: four numbers from 0 to 255, as 10.0.0.1") from None
    return value


Host = Annotated[str, AfterValidator(_host)]


def _clock(value: object) -> object:
    """YAML reads 24:00:00 without quotes as a number of base 60."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return f"{value // 3600:02}:{value // 60 % 60:02}:{value % 60:02}"


SlurmTime = Annotated[str, StringConstraints(pattern=SLURM_TIME), BeforeValidator(_clock)]
SgeTime = Annotated[str, StringConstraints(pattern=SGE_TIME), BeforeValidator(_clock)]


class RayUpPart(Part):
    """What `ray up` needs on every provider."""

    user: Word = Field("ubuntu", description="User that logs in over SSH, and that Ray runs as.")
    private_key: Word | None = Field(
        None,
        description="Path of the SSH private key on this machine; on own hosts it is copied to the head, which logs in "
        "to the workers with it. null: what ssh finds, here and on the head; on a cloud Ray makes one.",
    )
    run_options: list[str] = Field(
        [], description="Further options of `docker run` on every node, where `image` is set, e.g. --shm-size=8g."
    )


class LocalPart(RayUpPart):
    """Own hosts, over SSH. They need a Python with Rayscribe, by `setup` or beforehand, or Docker and an `image`."""

    provider: Literal["local"] = Field(description="local: own hosts.")
    head_ip: Host = Field(description="Address of the head, as the workers reach it, e.g. 10.0.0.1.")
    worker_ips: list[Host] = Field([], description="Addresses of the workers.")

    @model_validator(mode="after")
    def _each_host_once(self) -> Self:
        hosts = [self.head_ip, *self.worker_ips]
        if twice := next((host for host in hosts if hosts.count(host) > 1), None):
            raise ValueError(f"head_ip and worker_ips name {twice} twice: one Ray runs on each host")
        return self


class CloudPart(RayUpPart):
    """What every cloud needs."""

    idle_timeout_minutes: Positive = Field(
        10, description="Minutes after which a worker node without work is removed. The head stays."
    )
    internal_ips: bool = Field(
        False, description="Nodes without public addresses are reached by their private ones, from inside or a VPN."
    )
    disk_gb: Positive = Field(200, description="Size of each node's disk, encrypted at rest. GB.")


class AwsPart(CloudPart):
    """Instances of AWS EC2. Every node type has one security group, of which only members reach each other."""

    provider: Literal["aws"] = Field(description="aws: AWS EC2.")
    region: Word = Field(description="Region, e.g. us-west-2.")
    availability_zones: list[Word] = Field([], description="Zones to start nodes in, tried in order. []: any.")
    machine_image: Word = Field(
        description="AMI of the region with Docker and, for CUDA, NVIDIA's driver 580 or later, e.g. ami-0abc…. Ray's "
        "own choice, latest_dlami, has CUDA 11.2: too old for this PyTorch."
    )
    instance_profile: Word = Field(
        description="Name of the head's IAM instance profile: it starts and stops instances, and reads and writes "
        "the storage. Without one, Ray would make a role with full access to EC2 and S3."
    )
    worker_instance_profile: Word | None = Field(
        None, description="Name of the workers' IAM instance profile: access to the storage alone. null: none."
    )
    security_group_ids: list[Word] = Field(
        description="Existing security groups of all nodes: all traffic among members, SSH from your own network. "
        "Ray's default would open SSH to the world.",
        min_length=1,
    )
    subnet_ids: list[Word] = Field([], description="Subnets of the nodes. []: those that Ray finds in the zones.")
    key_name: Word | None = Field(
        None, description="Name of the EC2 key pair of `private_key`; needed with it. null: Ray makes one."
    )


class GcpPart(CloudPart):
    """Instances of Google Compute Engine."""

    provider: Literal["gcp"] = Field(description="gcp: Google Compute Engine.")
    project_id: Word = Field(description="Project, e.g. speech-1234.")
    region: Word = Field(description="Region, e.g. us-central1.")
    availability_zone: Word = Field(description="Zone of all nodes, e.g. us-central1-a.")
    machine_image: Word = Field(
        "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580",
        description="Boot image with Docker and, for CUDA, NVIDIA's driver 580 or later.",
    )
    service_account: Word = Field(
        description="E-mail of the head's service account: it starts and stops instances, and takes the place of the "
        "one that Ray makes, with all rights on instances and storage."
    )
    worker_service_account: Word | None = Field(
        None, description="E-mail of the workers' service account: access to the storage alone. null: none."
    )
    subnetwork: Word = Field(
        description="Subnetwork of the nodes, projects/…/regions/…/subnetworks/…. Its firewall lets in all "
        "traffic among the nodes' tag, and SSH from your own network."
    )
    network_tag: DnsLabel = Field("rayscribe", description="Tag of the nodes, for the firewall's rules.")


class KubernetesPart(Part):
    """What KubeRay's RayCluster and RayJob need."""

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
        description="Taints of nodes that a pool's pods tolerate, beside that of its device, by pool, e.g. {spot: "
        "[{key: cloud.google.com/gke-spot, operator: Equal, value: 'true', effect: NoSchedule}]}.",
    )
    clients: dict[str, str] = Field(
        default_factory=dict,
        description="Labels of the pods of this namespace that may reach the dashboard's port, beside KubeRay's "
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
    """What a Slurm batch job needs. It runs on as many nodes as the pool's `max`, each whole."""

    pool: str | None = Field(None, description="Pool that describes the nodes. null: the only pool.")
    partition: Word | None = Field(None, description="Partition. null: the site's default.")
    account: Word | None = Field(None, description="Account that is charged. null: the user's default.")
    qos: Word | None = Field(None, description="Quality of service. null: the site's default.")
    time_limit: SlurmTime = Field("24:00:00", description="Longest time that the job runs at a stretch, [D-]HH:MM:SS.")
    signal_s: Positive = Field(
        300, description="Seconds before the time limit at which the run is told to take a checkpoint and to end."
    )
    requeue: bool = Field(True, description="Queue the job again after its time limit or a lost node; it continues.")
    gpu_option: Literal["gres", "gpus-per-node"] = Field(
        "gres", description="How this site's jobs ask for GPUs: --gres=gpu:TYPE:N or --gpus-per-node=TYPE:N."
    )
    output: Word = Field("%x-%j.out", description="File of the output; %x is the job's name, %j its number.")
    options: list[str] = Field([], description="Further #SBATCH options, e.g. --constraint=nvlink.")


class SgePart(Part):
    """What a Grid Engine batch job needs. It runs on one host."""

    pool: str | None = Field(None, description="Pool that describes the host. null: the only pool.")
    parallel_environment: Word = Field("mthread", description="Parallel environment whose slots lie on one host.")
    slots: Positive | None = Field(None, description="Slots (CPUs) of the job. null: the pool's cpus.")
    queue: Word | None = Field(None, description="Queue. null: the one that the resources choose.")
    project: Word | None = Field(None, description="Project that is charged. null: the user's default.")
    gpu_resource: Word | None = Field("gpu", description="Resource that asks for GPUs. null: none is named.")
    gpu_arch: Word | None = Field(None, description="Value of the resource gpu_arch, e.g. l40s. null: any.")
    memory: dict[str, Word] = Field(
        default_factory=dict, description="Memory resources of this site, e.g. {h_vmem: 8G}; most count by slot."
    )
    time_limit: SgeTime | None = Field(
        None, description="Longest time that the job runs at a stretch, HH:MM:SS (h_rt). null: the queue's."
    )
    signal_s: Positive = Field(
        300, description="Seconds before the time limit at which the run is told to take a checkpoint and to end."
    )
    requeue: bool = Field(True, description="Queue the job again after its time limit; it continues.")
    output: str = Field(
        "$JOB_NAME.$JOB_ID.log", pattern=r"^[^\s'\"`;|&<>]+$", description="File of the output and errors (-o, -j y)."
    )
    options: list[str] = Field([], description="Further #$ options, e.g. -l avx2.")
