"""Google Compute Engine."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from cluster_configs.providers.provider import CloudPart, Notice, Provider, ask
from cluster_configs.rendering.spec_parts import DnsLabel, PoolPart, Word
from cluster_configs.validation.cluster_file import RAY_UP, ClusterFile, Rule, Violation
from cluster_configs.validation.yaml_nodes import Node

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
HEADERS = {"Metadata-Flavor": "Google"}
# Machine types of Google Compute Engine that come with GPUs.
_GCP_GPU_MACHINES = re.compile(r"(a[2-9]|g[2-9])-")
# Seconds until the machine ends after a notice.
GCP_LEFT_S, GCP_MAINTENANCE_LEFT_S = 30.0, 60.0


class GcpPart(CloudPart):
    """Instances of Google Compute Engine."""

    title: ClassVar[str] = "Google Compute Engine"
    provider: Literal["gcp"] = Field(description="gcp: Google Compute Engine.")
    project_id: Word = Field(description="Project, e.g. speech-1234.")
    region: Word = Field(description="Region, e.g. us-central1.")
    availability_zone: Word = Field(description="Zone of all nodes, e.g. us-central1-a.")
    machine_image: Word = Field(
        "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580",
        description="Boot image with Docker and, for CUDA, NVIDIA's driver 580 or later.",
    )
    service_account: Word = Field(
        description="E-mail of the head's service account, which starts and stops instances. Ray's default would be "
        "an account with all rights on instances and storage."
    )
    worker_service_account: Word | None = Field(
        None, description="E-mail of the workers' service account, with access to the storage only. null: none."
    )
    subnetwork: Word = Field(
        description="Subnetwork of the nodes, projects/…/regions/…/subnetworks/…. Its firewall lets in all "
        "traffic among the nodes' tag, and SSH from your own network."
    )
    network_tag: DnsLabel = Field("rayscribe", description="Tag of the nodes, for the firewall's rules.")

    def provider_section(self) -> dict[str, Any]:
        return {
            "type": "gcp",
            "region": self.region,
            "availability_zone": self.availability_zone,
            "project_id": self.project_id,
            "use_internal_ips": self.internal_ips,
        }

    def node_config(self, instance: str, pool: PoolPart | None) -> dict[str, Any]:
        account = self.service_account if pool is None else self.worker_service_account
        outside = {} if self.internal_ips else {"accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]}
        disk = {"diskSizeGb": self.disk_gb, "diskType": f"zones/{self.availability_zone}/diskTypes/pd-balanced"}
        config: dict[str, Any] = {
            "machineType": instance,
            "tags": {"items": [self.network_tag]},
            "networkInterfaces": [{"subnetwork": self.subnetwork, **outside}],
            "disks": [
                {"boot": True, "autoDelete": True, "type": "PERSISTENT",
                 "initializeParams": {**disk, "sourceImage": self.machine_image}}
            ],
            "serviceAccounts": [{"email": account, "scopes": SCOPES}] if account else [],
            "shieldedInstanceConfig": {
                "enableSecureBoot": False, "enableVtpm": True, "enableIntegrityMonitoring": True
            },
        }  # fmt: skip
        if pool is None:
            return config
        if pool.accelerators and pool.accelerator_type:
            kind = {"acceleratorType": pool.accelerator_type, "acceleratorCount": pool.accelerators}
            config["guestAccelerators"] = [kind]
        if pool.spot:
            config["scheduling"] = {
                "provisioningModel": "SPOT", "instanceTerminationAction": "DELETE", "onHostMaintenance": "TERMINATE",
                "automaticRestart": False,
            }  # fmt: skip
        elif pool.accelerators:
            config["scheduling"] = {"onHostMaintenance": "TERMINATE"}
        return config


@dataclass
class Gcp:
    """The metadata server of Compute Engine.

    https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption, and for host maintenance
    https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice; live migrations are ignored.
    """

    url: str
    name: str = "GCP"

    def is_here(self) -> bool:
        """Returns True if the response has Google's header."""
        flavor: str | None = ask(f"{self.url}/computeMetadata/v1/", HEADERS).headers.get("metadata-flavor")
        return flavor == "Google"

    def notice(self, now_s: float) -> Notice | None:
        """Returns the notice of a preemption, 30 s before it, or of maintenance that ends the machine; None without."""
        if self._get("preempted").upper() == "TRUE":
            return Notice("GCP: the instance is preempted", now_s + GCP_LEFT_S)
        if self._get("maintenance-event").startswith("TERMINATE"):
            return Notice("GCP: maintenance of its host ends the instance", now_s + GCP_MAINTENANCE_LEFT_S)
        return None

    def _get(self, name: str) -> str:
        response = ask(f"{self.url}/computeMetadata/v1/instance/{name}", HEADERS)
        if response.status_code != 200:
            raise OSError(f"GCP's metadata server answers instance/{name} with {response.status_code}")
        return response.text.strip()


def _spot_setting(config: Node) -> Node | None:
    """Returns the field that makes the machine spot: `preemptible`, or the newer `provisioningModel`."""
    older, newer = config.get("scheduling", "preemptible"), config.get("scheduling", "provisioningModel")
    if older.text == "true":
        return older
    return newer if newer.text.lower() == "spot" else None


def _accelerators_declared(file: ClusterFile) -> Iterator[Violation]:
    for pool in file.pools:
        config, resources = pool.node.get("node_config"), pool.node.get("resources")
        machine = config.get("machineType")
        has_gpu = config.get("guestAccelerators").value or _GCP_GPU_MACHINES.match(machine.text)
        if has_gpu and not pool.accelerators:
            yield Violation(
                resources.place, machine.text, "add GPU: N, since Ray detects GPUs by itself on AWS, but not on GCP"
            )


RULES = (Rule("accelerators-declared", RAY_UP, _accelerators_declared),)
SPOT_LABELS = {"cloud.google.com/gke-spot": "true", "cloud.google.com/gke-preemptible": "true"}
GCP = Provider(GcpPart, _spot_setting, RULES, Gcp, spot_labels=SPOT_LABELS)
