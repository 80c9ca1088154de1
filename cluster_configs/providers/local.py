"""Own hosts, over SSH."""

import json
import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from cluster_configs.providers.provider import HEAD, Provider, RayUpPart
from cluster_configs.rendering.spec_parts import RESOURCE, HeadPart, PoolPart
from cluster_configs.validation.cluster_file import RAY_UP, ClusterFile, Rule, Violation

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?")
# Ray's newer autoscaler counts the head of own hosts as a worker, and leaves one of the workers out (Ray 2.60). The
# older one tries for 900 s to log in to a host, and never again; with this variable, for a week.
OWN_HOSTS_VARIABLES = {"RAY_enable_autoscaler_v2": "0", "AUTOSCALER_NODE_START_WAIT_S": "604800"}
# Ray's autoscaler never retries a host after one start that failed over SSH (Ray 2.60), e.g. on a busy host, where Ray
# needs more than 30 s, or on one that dies meanwhile; but it starts Ray again on a host without heartbeats, any number
# of times. So Ray is started in the background, where the start cannot fail over SSH. The folder is the user's own, and
# outside the home, which the hosts may share.
START_FOLDER = "/tmp/ray_start_$(id -u)"


def _host(value: str) -> str:
    if HOST.fullmatch(value) is None:
        raise ValueError("must be an address or a host name, e.g. 10.0.0.1")
    if re.fullmatch(r"[\d.]+", value):
        try:
            ip_address(value)
        except ValueError:
            raise ValueError("is not an IPv4 address: write four numbers from 0 to 255, e.g. 10.0.0.1") from None
    return value


Host = Annotated[str, AfterValidator(_host)]


class LocalPart(RayUpPart):
    """Own hosts, over SSH. They need Docker and an `image`, or a Python with Rayscribe, which `setup` may install."""

    provider: Literal["local"] = Field(description="local: own hosts.")
    head_ip: Host = Field(description="Address at which workers connect to the head, e.g. 10.0.0.1.")
    worker_ips: list[Host] = Field([], description="Addresses of the workers.")

    @model_validator(mode="after")
    def _each_host_once(self) -> Self:
        hosts = [self.head_ip, *self.worker_ips]
        if twice := next((host for host in hosts if hosts.count(host) > 1), None):
            raise ValueError(f"head_ip and worker_ips name {twice} twice: one Ray runs on each host")
        return self

    def check_nodes(self, pools: Mapping[str, PoolPart], image: str | None) -> None:
        if len(pools) != 1:
            raise ValueError("pools: own hosts are one pool, since Ray's provider `local` has one kind of node")
        if image is not None and self.private_key is None:
            raise ValueError(
                "ray_up.private_key: missing; with image, the head has no other key to log in to the workers: give "
                "its path, e.g. ~/.ssh/id_ed25519"
            )

    def provider_section(self) -> dict[str, Any]:
        return {"type": "local", "head_ip": self.head_ip, "worker_ips": self.worker_ips}

    def head_start(self, head: HeadPart, pools: Mapping[str, PoolPart]) -> tuple[dict[str, str], dict[str, Any]]:
        options = {"node-ip-address": self.head_ip, "num-cpus": head.ray_cpus, "num-gpus": 0, "labels": f"pool={HEAD}"}
        return OWN_HOSTS_VARIABLES, options

    def worker_options(self, pools: Mapping[str, PoolPart]) -> dict[str, Any]:
        ((name, pool),) = pools.items()
        options: dict[str, Any] = {"num-cpus": pool.cpus} if "cpus" in pool.model_fields_set else {}
        device = RESOURCE[pool.hardware]
        if device == "GPU":
            options["num-gpus"] = pool.accelerators
        elif pool.accelerators:
            options["resources"] = f"'{json.dumps({device: pool.accelerators}, separators=(',', ':'))}'"
        labels = {"pool": name, **pool.labels}
        return {**options, "labels": ",".join(f"{key}={value}" for key, value in labels.items())}

    def worker_start_commands(self, start: str) -> list[str]:
        # Ray's processes must not inherit the lock.
        locked = f"flock -n 9 || exit; {{ ray stop; {start}; }} > $d/log 2>&1 9>&-"
        return [
            f"d={START_FOLDER}; mkdir -p -m 700 $d && [ -O $d ] || exit; tail -n 20 $d/log 2> /dev/null; trap '' HUP; "
            f"({locked}) 9> $d/lock < /dev/null > /dev/null 2>&1 &"
        ]

    def about(self, pools: Mapping[str, PoolPart]) -> str:
        if any(pool.hardware == "hpu" for pool in pools.values()):
            return (
                "Own hosts with Gaudi accelerators, reached over SSH. Scripts use them (docs/accelerators.md), recipes "
                "the CPUs."
            )
        return "Own hosts, reached over SSH."

    def comments(self, head: HeadPart, pools: Mapping[str, PoolPart]) -> dict[str, str]:
        return {
            "head_start_ray_commands": "Ray's newer autoscaler would count the head as a worker.",
            "worker_start_ray_commands": "In the background, since Ray's autoscaler never retries a host after a "
            "failed start, but restarts Ray on a host without heartbeats. Each start prints the end of the last log.",
            "provider": "Addresses at which the hosts connect to each other. All workers join.",
        }


def _local_hosts_join(file: ClusterFile) -> Iterator[Violation]:
    fix = "export RAY_enable_autoscaler_v2=0 before it: the newer autoscaler counts the head as one of the workers"
    for place, start in file.ray_starts():
        newer = start.environment.get("RAY_enable_autoscaler_v2", "")
        if start.head and newer.lower() not in ("0", "false"):
            yield Violation(place, f"RAY_enable_autoscaler_v2={newer}" if newer else "", fix)


RULES = (Rule("local-hosts-join", RAY_UP, _local_hosts_join),)
LOCAL = Provider(LocalPart, rules=RULES)
