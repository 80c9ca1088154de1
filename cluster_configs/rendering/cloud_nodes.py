"""What the clouds are asked for: provider and instances of AWS EC2 and Google Compute Engine."""

from typing import Any

from cluster_configs.rendering.cluster_spec import PoolPart
from cluster_configs.rendering.target_parts import AwsPart, GcpPart
from trainers.errors import ConfigError

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


def aws_provider(part: AwsPart) -> dict[str, Any]:
    """Ray's provider for EC2. Stopped instances are not kept: their disks would cost, and hold data."""
    return {
        "type": "aws",
        "region": part.region,
        **({"availability_zone": ",".join(part.availability_zones)} if part.availability_zones else {}),
        "use_internal_ips": part.internal_ips,
        "cache_stopped_nodes": False,
    }


def aws_node(part: AwsPart, instance: str, pool: PoolPart | None) -> dict[str, Any]:
    """Arguments of EC2's RunInstances.

    Args:
        part: What all nodes share.
        instance: Instance type.
        pool: The pool. None: the head.

    Raises:
        ConfigError: there is a private key, and no name of its key pair.
    """
    if part.private_key is not None and part.key_name is None:
        raise ConfigError("ray_up.key_name: missing; name the EC2 key pair of ray_up.private_key")
    profile = part.instance_profile if pool is None else part.worker_instance_profile
    config: dict[str, Any] = {
        "InstanceType": instance,
        "ImageId": part.machine_image,
        "SecurityGroupIds": part.security_group_ids,
    }
    if part.subnet_ids:
        config["SubnetIds"] = part.subnet_ids
    if part.key_name is not None:
        config["KeyName"] = part.key_name
    if profile is not None:
        config["IamInstanceProfile"] = {"Name": profile}
    config["MetadataOptions"] = {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 1}
    disk = {"VolumeSize": part.disk_gb, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
    config["BlockDeviceMappings"] = [{"DeviceName": "/dev/sda1", "Ebs": disk}]
    if pool is not None and pool.spot:
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        config["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    return config


def gcp_provider(part: GcpPart) -> dict[str, Any]:
    """Ray's provider for Compute Engine."""
    return {
        "type": "gcp",
        "region": part.region,
        "availability_zone": part.availability_zone,
        "project_id": part.project_id,
        "use_internal_ips": part.internal_ips,
    }


def gcp_node(part: GcpPart, instance: str, pool: PoolPart | None) -> dict[str, Any]:
    """Body of Compute Engine's instances.insert.

    Args:
        part: What all nodes share.
        instance: Machine type.
        pool: The pool. None: the head.
    """
    account = part.service_account if pool is None else part.worker_service_account
    outside = {} if part.internal_ips else {"accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]}
    disk = {"diskSizeGb": part.disk_gb, "diskType": f"zones/{part.availability_zone}/diskTypes/pd-balanced"}
    config: dict[str, Any] = {
        "machineType": instance,
        "tags": {"items": [part.network_tag]},
        "networkInterfaces": [{"subnetwork": part.subnetwork, **outside}],
        "disks": [
            {"boot": True, "autoDelete": True, "type": "PERSISTENT",
             "initializeParams": {**disk, "sourceImage": part.machine_image}}
        ],
        "serviceAccounts": [{"email": account, "scopes": SCOPES}] if account else [],
        "shieldedInstanceConfig": {"enableSecureBoot": False, "enableVtpm": True, "enableIntegrityMonitoring": True},
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
