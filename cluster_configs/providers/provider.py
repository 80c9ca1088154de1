"""Interface of providers of nodes: a part of a spec that renders itself, rules, and a metadata service."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import httpx
from pydantic import Field

from cluster_configs.rendering.spec_parts import RESOURCE, HeadPart, PoolPart, Word, growth_variables
from cluster_configs.validation.cluster_file import Rule
from cluster_configs.validation.yaml_nodes import Node
from trainers.config.parts.part import Part, Positive
from trainers.errors import ConfigError

METADATA_URL = "http://169.254.169.254"
TIMEOUT_S = 2.0


class Notice(NamedTuple):
    """Notice that the machine may end at `at_s` (seconds since 1970, UTC); `text` has the reason."""

    text: str
    at_s: float


def ask(url: str, headers: Mapping[str, str], *, method: str = "GET", timeout_s: float = TIMEOUT_S) -> httpx.Response:
    """Sends a request to a metadata service; raises OSError if there is no response, or it is not HTTP."""
    try:
        # A proxy of the environment cannot connect to a link-local address.
        return httpx.request(method, url, headers=headers, timeout=timeout_s, trust_env=False)
    except httpx.HTTPError as error:
        raise OSError(f"{url} does not answer: {error}") from error


class Cloud(Protocol):
    """A cloud's metadata service."""

    name: str

    def is_here(self) -> bool:
        """Returns True if this machine runs on this cloud; raises OSError if there is no response."""

    def notice(self, now_s: float) -> Notice | None:
        """Returns the notice about this machine, if any; `now_s` are seconds since 1970 (UTC).

        Raises:
            OSError: there is no response, or it violates the protocol.
        """


def read_json(response: httpx.Response, name: str) -> dict[str, Any]:
    """Returns the JSON object in a response; raises OSError for an error status or other content."""
    try:
        return dict(response.raise_for_status().json())
    except (httpx.HTTPStatusError, TypeError, ValueError) as error:
        raise OSError(f"{name}'s metadata service does not answer with a JSON object: {error}") from None


HEAD = "head"
MARKET_TYPE = "ray.io/market-type"


class RayUpPart(Part):
    """The `ray_up:` part of a spec, on every provider."""

    needs_image: ClassVar[bool] = False
    provider: str = Field(description="Which provider.")
    user: Word = Field("ubuntu", description="User that logs in over SSH, and that Ray runs as.")
    private_key: Word | None = Field(
        None,
        description="Path of the SSH private key on this machine; on own hosts it is copied to the head, which logs in "
        "to the workers with it. null: the keys that ssh finds, here and on the head; on a cloud, Ray makes one.",
    )
    run_options: list[str] = Field(
        [], description="Further options of `docker run` on every node, where `image` is set, e.g. --shm-size=8g."
    )

    @property
    def agent_options(self) -> str:
        """Options of the preemption agent on spot nodes."""
        return ""

    def check_nodes(self, pools: Mapping[str, PoolPart], image: str | None) -> None:
        """Rejects nodes that the provider cannot have; raises ValueError, which names the field."""

    @abstractmethod
    def provider_section(self) -> dict[str, Any]:
        """Returns Ray's `provider`."""

    def node_types(self, head: HeadPart, pools: Mapping[str, PoolPart]) -> dict[str, Any]:
        """Returns the fields for Ray's node types and their limits; raises ConfigError if a spec's field is missing."""
        return {}

    @abstractmethod
    def head_start(self, head: HeadPart, pools: Mapping[str, PoolPart]) -> tuple[dict[str, str], dict[str, Any]]:
        """Returns further variables of the head, and further options of its `ray start --head`."""

    def worker_options(self, pools: Mapping[str, PoolPart]) -> dict[str, Any]:
        """Returns further options of a worker's `ray start`."""
        return {}

    def worker_start_commands(self, start: str) -> list[str]:
        """Returns the shell commands that restart Ray on a worker; `start` is the command that starts it."""
        return ["ray stop", start]

    @abstractmethod
    def about(self, pools: Mapping[str, PoolPart]) -> str:
        """Returns the purpose of the file, for its first line."""

    @abstractmethod
    def comments(self, head: HeadPart, pools: Mapping[str, PoolPart]) -> dict[str, str]:
        """Returns further comments by key; each follows the common comment of its key."""


class CloudPart(RayUpPart):
    """The `ray_up:` part of a spec, on every cloud."""

    title: ClassVar[str]
    needs_image: ClassVar[bool] = True
    idle_timeout_minutes: Positive = Field(
        10, description="Minutes after which a worker node without work is removed. The head stays."
    )
    internal_ips: bool = Field(
        False, description="Use the nodes' private addresses, from the cloud's network or a VPN."
    )
    disk_gb: Positive = Field(200, description="Size of each node's disk, encrypted at rest. GB.")

    @abstractmethod
    def node_config(self, instance: str, pool: PoolPart | None) -> dict[str, Any]:
        """Returns the cloud's config of a pool's nodes, or of the head if `pool` is None.

        Raises:
            ConfigError: a field that it needs is missing.
        """

    @property
    def agent_options(self) -> str:
        """Options of the preemption agent, which sends requests to this cloud only."""
        return f" --provider {self.provider}"

    def node_types(self, head: HeadPart, pools: Mapping[str, PoolPart]) -> dict[str, Any]:
        if head.instance is None:
            raise ConfigError(f"{HEAD}.instance: missing; name an instance type")
        found = {
            HEAD: {
                "min_workers": 0,
                "max_workers": 0,
                "resources": {"CPU": head.ray_cpus},
                "labels": {"pool": HEAD},
                "node_config": self.node_config(head.instance, None),
            }
        }
        for name, pool in pools.items():
            if pool.instance is None:
                raise ConfigError(f"pools.{name}.instance: missing; name an instance type")
            market = "spot" if pool.spot else "on-demand"
            found[name] = {
                "min_workers": pool.min,
                "max_workers": pool.max,
                "resources": pool.resources,
                "labels": {"pool": name, MARKET_TYPE: market, **pool.labels},
                "node_config": self.node_config(pool.instance, pool),
            }
        return {
            "max_workers": sum(pool.max for pool in pools.values()),
            "idle_timeout_minutes": self.idle_timeout_minutes,
            "head_node_type": HEAD,
            "available_node_types": found,
        }

    def head_start(self, head: HeadPart, pools: Mapping[str, PoolPart]) -> tuple[dict[str, str], dict[str, Any]]:
        return growth_variables(head, pools), {}

    def about(self, pools: Mapping[str, PoolPart]) -> str:
        return f"{self.title}: a head on demand, and pools that grow from min to max: {', '.join(pools)}."

    def comments(self, head: HeadPart, pools: Mapping[str, PoolPart]) -> dict[str, str]:
        cpus = f"{head.ray_cpus} CPUs are" if head.ray_cpus else "no CPUs are"
        text = f"The jobs' drivers run here, never on a spot node; {cpus} for other work."
        pool_texts = {f"available_node_types/{name}": _about_pool(pool) for name, pool in pools.items()}
        return {f"available_node_types/{HEAD}": text, **pool_texts}


def _about_pool(pool: PoolPart) -> str:
    device = RESOURCE[pool.hardware]
    what = "For data: CPUs" if device == "CPU" else f"For training: {pool.accelerators} {device}s a node"
    on_spot = (
        ", on spot: cheaper, but preempted at short notice. An agent then drains the node, and training resumes from "
        "the checkpoint that it saves before the end."
    )
    return what + (on_spot if pool.spot else "; started when jobs ask for them.")


@dataclass(frozen=True)
class Provider:
    """One provider.

    Attributes:
        part: Its part `ray_up:` of a spec. None if it cannot be rendered, and only its notices are read.
        spot_setting: Finds the setting in a `node_config` that makes a machine a spot one.
        rules: Rules of its `ray up` files; one with a common rule's name extends that rule.
        metadata_service: Makes a client of the service with notices from its URL. None if there is no service.
        module: Module of Ray's provider `external` in its files. None if Ray has a provider of this one's name.
        spot_labels: Labels of the spot nodes of its Kubernetes service, with their values in lower case.
    """

    part: type[RayUpPart] | None = None
    spot_setting: Callable[[Node], Node | None] = lambda config: None
    rules: tuple[Rule, ...] = ()
    metadata_service: Callable[[str], Cloud] | None = None
    module: str | None = None
    spot_labels: Mapping[str, str] = field(default_factory=dict)
