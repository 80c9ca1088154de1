"""A cluster spec says what a cluster is; what is wrong in one is said with its field, value and fix."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from cluster_configs.providers.aws import AwsPart
from cluster_configs.providers.gcp import GcpPart
from cluster_configs.providers.local import LocalPart
from cluster_configs.rendering.cluster_spec import ClusterSpec, build_cluster_spec, load_cluster_spec
from tests.test_architecture import ROOT
from trainers.config.overrides import apply_overrides, parse_override
from trainers.errors import ConfigError

SPECS = sorted((ROOT / "cluster_configs" / "specs").glob("*.yaml"))
LOCAL = yaml.safe_load((ROOT / "cluster_configs" / "specs" / "local.yaml").read_text())
TOKEN = "hf_" + "a1B2" * 8


def message_for(*overrides: str, content: dict[str, Any] = LOCAL) -> str:
    with pytest.raises(ConfigError) as error:
        build_cluster_spec(apply_overrides(content, [parse_override(text) for text in overrides]), origin="my.yaml")
    return str(error.value)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_the_specs_of_the_repository_are_valid(path: Path) -> None:
    load_cluster_spec(path)


def test_the_provider_decides_which_fields_there_are() -> None:
    part = load_cluster_spec(ROOT / "cluster_configs" / "specs" / "local.yaml", ["ray_up.head_ip=10.9.0.1"]).ray_up
    assert isinstance(part, LocalPart)
    assert (part.head_ip, part.worker_ips) == ("10.9.0.1", ["10.0.0.2", "10.0.0.3"])


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (r'slurm={options: ["-C a\nrm -r b"]}', "slurm.options.0: String should match pattern"),
        (r'sge={options: ["-l a\nrm -r b"]}', "sge.options.0: String should match pattern"),
        ("imagee=a:b", "imagee: unknown key; did you mean image?"),
        ("partition=gpu", "partition: unknown key; did you mean slurm.partition?"),
        ("ray_up.head_ipp=10.0.0.1", "ray_up.head_ipp: unknown key; did you mean ray_up.head_ip?"),
        ("pools.hosts.maxx=3", "pools.hosts.maxx: unknown key; did you mean pools.hosts.max?"),
        ("ray_up={user: me}", "ray_up.provider: missing"),
        ("ray_up.provider=azure", "ray_up.provider: must be one of 'local', 'aws', 'gcp' (got 'azure')"),
        ("ray_up.head_ip=", "ray_up.head_ip: is empty"),
        ("ray_up.head_ip=10.0.0.300", "ray_up.head_ip: is not an IPv4 address"),
        ("ray_up.head_ip=10.0.0.2", "ray_up: head_ip and worker_ips name 10.0.0.2 twice"),
        ("name=My_Cluster", "name: String should match pattern"),
        ("ray_up={provider: local}", "ray_up.head_ip: missing; --set ray_up.head_ip=… or write it in the file"),
        ("pools.hosts.min=3", "pools.hosts: min (3) is greater than max (2)"),
        ("pools.hosts.cpus=4", "pools.hosts: cpus (4) leaves none for data next to one for each accelerator (4)"),
        ("pools.hosts.hardware=cpu", "hardware: cpu has no accelerators"),
        ("pools.more={max: 1}", "own hosts are one pool"),
        ("storage=runs", "storage: must be an absolute folder or an s3://, gs:// or az:// URL (got 'runs')"),
        ("storage=hdfs://bucket/runs", "hdfs:// is not supported"),
        ("setup=['echo a', \"echo a\\n b\"]", "setup.1: has a line break"),
        (
            "secrets.HF_TOKEN={env: A, file: /b}",
            "secrets.HF_TOKEN: give exactly one of env, file, client_file and kubernetes",
        ),
        ("exports.RAY_AUTH_MODE=none", "exports.RAY_AUTH_MODE: is set by the rendered file"),
        ("name=Speech", "name: "),
        ('storage="/shared\\nruns"', "storage: contains a line break"),
        ("secrets.HF_TOKEN={client_file: hub}", "secrets.HF_TOKEN.client_file: "),
        ("kubernetes.tolerations={spot: []}", "kubernetes.tolerations.spot: no such pool; there are hosts"),
    ],
)
def test_a_wrong_value_is_named_with_its_fix(override: str, says: str) -> None:
    assert says in message_for(override)


@pytest.mark.parametrize(
    "override", [f"exports.HF_TOKEN={TOKEN}", f"exports.A={TOKEN}", f"setup=[export A={TOKEN}]", f"secrets.A={TOKEN}"]
)
def test_a_secret_is_refused_and_not_repeated(override: str) -> None:
    message = message_for(override)
    assert "secret" in message
    assert TOKEN not in message


def test_a_container_on_the_head_of_own_hosts_needs_the_key_to_the_workers() -> None:
    message = message_for("image=a/b:1", "ray_up.private_key=null")
    assert "ray_up.private_key: missing; with image, the head has no other key" in message


def test_aws_needs_an_image_whose_driver_is_new_enough() -> None:
    # Ray's own choice, latest_dlami, has CUDA 11.2 (ray/autoscaler/_private/aws/config.py).
    part = {"provider": "aws", "region": "us-west-2", "instance_profile": "a", "security_group_ids": ["sg-1"]}
    assert "ray_up.machine_image: missing" in message_for(content={**LOCAL, "ray_up": part})


def test_every_problem_is_named_at_once() -> None:
    assert message_for("name=A", "imagee=b").startswith("my.yaml: 2 problems")


def test_a_batch_job_runs_on_the_only_pool_or_the_one_that_is_named() -> None:
    spec = build_cluster_spec({**LOCAL, "ray_up": None, "pools": {"a": {}, "b": {}}}, origin="my.yaml")
    assert spec.pool("b", "slurm.pool")[0] == "b"
    with pytest.raises(ConfigError, match=r"slurm\.pool: must be one of the pools a, b"):
        spec.pool(None, "slurm.pool")


def parts_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from parts_in(field.annotation)
    for item in get_args(annotation):
        yield from parts_in(item)


def test_every_field_says_what_it_means() -> None:
    parts = {*parts_in(ClusterSpec)}
    assert {LocalPart, AwsPart, GcpPart} <= parts
    fields = [(part.__name__, name, field.description) for part in parts for name, field in part.model_fields.items()]
    assert [(part, name) for part, name, description in fields if not description] == []
