"""AWS EC2."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal

import httpx
from pydantic import Field

from cluster_configs.providers.provider import CloudPart, Notice, Provider, ask, read_json
from cluster_configs.rendering.spec_parts import PoolPart, Word
from cluster_configs.validation.cluster_file import RAY_UP, ClusterFile, Rule, Violation, is_the_world
from cluster_configs.validation.yaml_nodes import Node
from trainers.errors import ConfigError

# Seconds until the machine ends, if the notice has no time.
AWS_LEFT_S = 120.0
AWS_TOKEN_TTL_S = 21_600


class AwsPart(CloudPart):
    """Instances of AWS EC2. Every node type has one security group; only its members can connect to each other."""

    title: ClassVar[str] = "AWS EC2"
    provider: Literal["aws"] = Field(description="aws: AWS EC2.")
    region: Word = Field(description="Region, e.g. us-west-2.")
    availability_zones: list[Word] = Field([], description="Zones to start nodes in, tried in order. []: any.")
    machine_image: Word = Field(
        description="AMI of the region with Docker and, for CUDA, NVIDIA's driver 580 or later, e.g. ami-0abc…. Ray's "
        "own choice, latest_dlami, has CUDA 11.2: too old for this PyTorch."
    )
    instance_profile: Word = Field(
        description="Name of the head's IAM instance profile, whose role may start and stop instances, and read and "
        "write the storage. Ray's default would be a role with full access to EC2 and S3."
    )
    worker_instance_profile: Word | None = Field(
        None, description="Name of the workers' IAM instance profile, with access to the storage only. null: none."
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

    def provider_section(self) -> dict[str, Any]:
        """Returns Ray's `provider`. Stopped instances are not kept, since their disks cost money and contain data."""
        return {
            "type": "aws",
            "region": self.region,
            **({"availability_zone": ",".join(self.availability_zones)} if self.availability_zones else {}),
            "use_internal_ips": self.internal_ips,
            "cache_stopped_nodes": False,
        }

    def node_config(self, instance: str, pool: PoolPart | None) -> dict[str, Any]:
        if self.private_key is not None and self.key_name is None:
            raise ConfigError("ray_up.key_name: missing; name the EC2 key pair of ray_up.private_key")
        profile = self.instance_profile if pool is None else self.worker_instance_profile
        config: dict[str, Any] = {
            "InstanceType": instance,
            "ImageId": self.machine_image,
            "SecurityGroupIds": self.security_group_ids,
        }
        if self.subnet_ids:
            config["SubnetIds"] = self.subnet_ids
        if self.key_name is not None:
            config["KeyName"] = self.key_name
        if profile is not None:
            config["IamInstanceProfile"] = {"Name": profile}
        config["MetadataOptions"] = {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 1}
        disk = {"VolumeSize": self.disk_gb, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
        config["BlockDeviceMappings"] = [{"DeviceName": "/dev/sda1", "Ebs": disk}]
        if pool is not None and pool.spot:
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            config["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        return config


@dataclass
class Aws:
    """The instance metadata service of EC2, version 2 only.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html. Rebalance
    recommendations are ignored, since they may come hours before an interruption, or without one.
    """

    url: str
    name: str = "AWS"
    _token: str | None = None

    def is_here(self) -> bool:
        """Returns True if the service issues a token."""
        self._token = None
        return self._get("instance-id").status_code == 200

    def notice(self, now_s: float) -> Notice | None:
        """Returns the notice of a spot instance's interruption, which comes two minutes before it; None without one."""
        response = self._get("spot/instance-action")
        if response.status_code == 404:
            return None
        action = read_json(response, self.name)
        at_s = now_s + AWS_LEFT_S
        with contextlib.suppress(KeyError, TypeError, ValueError):
            at_s = datetime.fromisoformat(action["time"]).timestamp()
        return Notice(f"AWS: the instance is to {action.get('action', 'end')}", at_s)

    def _get(self, path: str) -> httpx.Response:
        response = httpx.Response(401)
        for _ in range(2):
            if self._token is None:
                issued = ask(
                    f"{self.url}/latest/api/token",
                    {"X-aws-ec2-metadata-token-ttl-seconds": str(AWS_TOKEN_TTL_S)},
                    method="PUT",
                )
                if issued.status_code != 200:
                    return issued
                self._token = issued.text.strip()
            response = ask(f"{self.url}/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": self._token})
            if response.status_code != 401:
                break
            # The token has expired.
            self._token = None
        return response


def _spot_setting(config: Node) -> Node | None:
    market = config.get("InstanceMarketOptions")
    # Market options without a type also mean spot.
    if market.value and market.get("MarketType").text.lower() in ("spot", ""):
        return market.get("MarketType") if market.get("MarketType").present else market
    return None


def _ssh_from_own_network(file: ClusterFile) -> Iterator[Violation]:
    provider = file.document.get("provider")
    for node in provider.get("security_group").walk():
        if is_the_world(node.text):
            yield Violation.at(node, "name your own network, e.g. 203.0.113.0/24")
    for node_type in file.node_types:
        config = node_type.get("node_config")
        if not any(config.get(name).value for name in ("SecurityGroupIds", "NetworkInterfaces", "LaunchTemplate")):
            fix = "name a security group of your own: Ray makes one that opens SSH to 0.0.0.0/0"
            yield Violation(config.place, "no SecurityGroupIds", fix)


def _imds_v2(file: ClusterFile) -> Iterator[Violation]:
    for node_type in file.node_types:
        tokens = node_type.get("node_config", "MetadataOptions", "HttpTokens")
        of_template = node_type.get("node_config", "LaunchTemplate").present and not tokens.present
        if tokens.text != "required" and not of_template:
            yield Violation.at(
                tokens,
                "set MetadataOptions: {HttpTokens: required}, so that a forged request from a node (SSRF) gets no "
                "credentials",
            )


def _pinned_machine_images(file: ClusterFile) -> Iterator[Violation]:
    for node_type in file.node_types:
        config = node_type.get("node_config")
        image_id = config.get("ImageId")
        # For both, the image depends on Ray's version (_private/aws/config.py:DEFAULT_AMI).
        if image_id.text.lower() in ("", "latest_dlami") and not config.get("LaunchTemplate").present:
            fix = "name an image of the region: ami-…; Ray's own choice changes with its version, and is old"
            yield Violation(image_id.place, image_id.text or "no ImageId", fix)


RULES = (
    Rule("ssh-from-own-network", RAY_UP, _ssh_from_own_network),
    Rule("imds-v2", RAY_UP, _imds_v2),
    Rule("pinned-image", RAY_UP, _pinned_machine_images),
)
# Labels of EKS' managed node groups, and of Karpenter, which began there and starts nodes of other clouds as well.
SPOT_LABELS = {"eks.amazonaws.com/capacityType": "spot", "karpenter.sh/capacity-type": "spot"}
AWS = Provider(AwsPart, _spot_setting, RULES, Aws, spot_labels=SPOT_LABELS)
