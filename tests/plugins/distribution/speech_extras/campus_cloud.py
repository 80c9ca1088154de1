"""A campus cloud as provider of nodes: its part of a spec, what it is asked for, and its rules. Pure."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field
from rayscribe.cluster_configs.providers.provider import CloudPart, Provider
from rayscribe.cluster_configs.rendering.spec_parts import PoolPart, Word
from rayscribe.cluster_configs.validation.cluster_file import RAY_UP, ClusterFile, Rule, Violation
from rayscribe.cluster_configs.validation.yaml_nodes import Node

# Of Ray's provider `external`: the NodeProvider that starts and ends machines. The head imports it.
MODULE = "campus_nodes.CampusNodeProvider"


class CampusPart(CloudPart):
    """Machines of the campus cloud."""

    title: ClassVar[str] = "The campus cloud"
    provider: Literal["campus"] = Field(description="campus: the campus cloud.")
    project: Word = Field(description="Project whose quota the machines are counted in, e.g. speech-lab.")

    def provider_section(self) -> dict[str, Any]:
        return {
            "type": "external",
            "module": MODULE,
            "project": self.project,
            "use_internal_ips": self.internal_ips,
        }

    def node_config(self, instance: str, pool: PoolPart | None) -> dict[str, Any]:
        config: dict[str, Any] = {"flavor": instance, "disk_gb": self.disk_gb}
        return config | {"preemptible": True} if pool is not None and pool.spot else config


def _spot_setting(config: Node) -> Node | None:
    setting = config.get("preemptible")
    return setting if setting.text == "true" else None


def _disks_fit(file: ClusterFile) -> Iterator[Violation]:
    for pool in file.pools:
        size = pool.node.get("node_config", "disk_gb")
        if (size.number or 0) > 2000:
            yield Violation(size.place, size.text, "ask for at most 2000 GB, the largest disk of the campus cloud")


RULES = (Rule("campus-disks", RAY_UP, _disks_fit),)
CAMPUS = Provider(CampusPart, _spot_setting, RULES, module=MODULE)
