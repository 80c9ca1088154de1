"""aws.yaml through Ray's own provider: what it asks EC2 for, over HTTP, of a stand-in (moto).

Covered: Ray's bootstrap of the file (key pair, subnets, security groups, image), and RunInstances for the head and each
pool as `ray up` and the autoscaler send it. Not covered: whether AWS has the instances, and what runs on them.
"""

from collections.abc import Callable, Iterator
from io import BytesIO
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl

import boto3
import pytest
import yaml
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from ray.autoscaler._private.aws.config import bootstrap_aws
from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler._private.aws.utils import client_cache, resource_cache
from ray.autoscaler._private.util import prepare_config
from werkzeug.serving import make_server

from cluster_configs.rendering.cluster_spec import load_cluster_spec
from cluster_configs.rendering.render import render
from cluster_configs.rendering.targets import Target
from tests.s3 import AWS_VARIABLES, LOOPBACK, UNWANTED_VARIABLES
from tests.test_architecture import ROOT

REGION = "us-west-2"
OFFICE = "203.0.113.0/24"
WORLD = ("0.0.0.0/0", "::/0")


class Ec2:
    """A stand-in that remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self._application = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        self.requests.append(dict(parse_qsl(body.decode())))
        return self._application({**environ, "wsgi.input": BytesIO(body)}, start_response)

    def asked(self, action: str) -> list[dict[str, str]]:
        return [request for request in self.requests if request.get("Action") == action]


@pytest.fixture(scope="module")
def ec2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ec2]:
    found = Ec2()
    server = make_server(LOOPBACK, 0, found, threaded=True, request_handler=MotoRequestHandler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        # Ray writes the private key that it makes to ~/.ssh.
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        for name in UNWANTED_VARIABLES:
            patch.delenv(name, raising=False)
        endpoint = {"AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{server.server_port}"}
        for name, value in {**AWS_VARIABLES, "AWS_DEFAULT_REGION": REGION, **endpoint}.items():
            patch.setenv(name, value)
        resource_cache.cache_clear()
        client_cache.cache_clear()
        yield found
        resource_cache.cache_clear()
        client_cache.cache_clear()
    server.shutdown()
    thread.join()
    server.server_close()


def owned_group() -> str:
    """The security group of docs/clusters.md: all traffic among members, SSH from one's own network."""
    client = boto3.client("ec2", region_name=REGION)
    vpc = client.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = client.create_security_group(GroupName="rayscribe", Description="Nodes of rayscribe", VpcId=vpc)["GroupId"]
    client.authorize_security_group_ingress(
        GroupId=group,
        IpPermissions=[
            {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]},
            {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": OFFICE}]},
        ],
    )
    return str(group)


@pytest.fixture(scope="module")
def asked(ec2: Ec2) -> dict[str, dict[str, str]]:
    """Starts the head and one node of each pool; what RunInstances was sent for each."""
    group = owned_group()
    iam = boto3.client("iam")
    for profile in ("rayscribe-head", "rayscribe-worker"):
        iam.create_instance_profile(InstanceProfileName=profile)
    spec = load_cluster_spec(ROOT / "cluster_configs" / "specs" / "aws.yaml", [f"ray_up.security_group_ids=[{group}]"])
    config = bootstrap_aws(prepare_config(yaml.safe_load(render(spec, Target.RAY_UP))))
    provider = AWSNodeProvider(config["provider"], config["cluster_name"])
    found = {}
    for name, node_type in config["available_node_types"].items():
        tags = {"ray-node-type": "head" if name == config["head_node_type"] else "worker", "ray-user-node-type": name}
        provider.create_node(node_type["node_config"], tags, 1)
        found[name] = ec2.asked("RunInstances")[-1]
    return found


@pytest.mark.integration
def test_what_aws_is_asked_for(ec2: Ec2, asked: dict[str, dict[str, str]]) -> None:
    assert len(ec2.asked("RunInstances")) == len(asked) == 4
    assert {name: request["InstanceType"] for name, request in asked.items()} == {
        "head": "m7i.xlarge",
        "data": "c7i.4xlarge",
        "train": "g6.12xlarge",
        "spot": "g6.12xlarge",
    }
    spot = {name: request.get("InstanceMarketOptions.MarketType") for name, request in asked.items()}
    assert spot == {"head": None, "data": None, "train": None, "spot": "spot"}
    assert asked["spot"]["InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior"] == "terminate"
    profiles = {name: request["IamInstanceProfile.Name"] for name, request in asked.items()}
    assert profiles == {name: f"rayscribe-{'head' if name == 'head' else 'worker'}" for name in asked}
    for request in asked.values():
        assert request["MetadataOptions.HttpTokens"] == "required"
        assert request["MetadataOptions.HttpPutResponseHopLimit"] == "1"
        assert request["BlockDeviceMapping.1.Ebs.Encrypted"] == "true"
        assert (request["MinCount"], request["MaxCount"]) == ("1", "1")
        tags = {value for key, value in request.items() if key.startswith("TagSpecification.")}
        assert {"speech", "ray-cluster-name"} <= tags
    instances = [
        instance
        for reservation in boto3.client("ec2", region_name=REGION).describe_instances()["Reservations"]
        for instance in reservation["Instances"]
    ]
    assert sorted(instance.get("InstanceLifecycle", "on-demand") for instance in instances) == [
        *["on-demand"] * 3,
        "spot",
    ]


def test_no_port_is_open_to_the_world_and_no_rights_are_handed_out(ec2: Ec2, asked: dict[str, dict[str, str]]) -> None:
    client = boto3.client("ec2", region_name=REGION)
    (own,) = client.describe_security_groups(GroupNames=["rayscribe"])["SecurityGroups"]
    assert {request["SecurityGroupId.1"] for request in asked.values()} == {own["GroupId"]}
    assert not [request for request in asked.values() if "SecurityGroupId.2" in request]
    cidrs = [
        item.get("CidrIp") or item.get("CidrIpv6")
        for rule in own["IpPermissions"]
        for item in (*rule["IpRanges"], *rule["Ipv6Ranges"])
    ]
    assert cidrs == [OFFICE]
    # Ray makes neither a group, which would open SSH to the world, nor a role with all rights on EC2 and S3.
    assert len(ec2.asked("CreateSecurityGroup")) == len(ec2.asked("AuthorizeSecurityGroupIngress")) == 1
    assert ec2.asked("CreateRole") == ec2.asked("AttachRolePolicy") == []
    assert not [value for request in ec2.requests for value in request.values() if value in WORLD]
