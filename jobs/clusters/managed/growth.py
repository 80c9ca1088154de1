"""What a cluster that `ray up` started can grow to, from the file that it was started from."""

import yaml

from jobs.addresses import cluster_name
from jobs.clusters.managed.cluster_record import find_record
from jobs.clusters.managed.ray_up_content import on_own_hosts


def growth_of(address: str) -> dict[str, float]:
    """The most that a cluster of a cloud can have of each logical resource: summed over the nodes that its file allows.

    The nodes that are there do not tell, since pools may be empty, and Ray has no call for it. Own hosts are all there.
    Types of nodes whose resources the file does not give are left out.

    Returns:
        Empty where the cluster was not started from this machine, or does not grow.
    """
    name = cluster_name(address)
    record = find_record(name) if name is not None else None
    if record is None:
        return {}
    try:
        content = yaml.safe_load(record.config_path.read_text(encoding="utf-8"))
        if on_own_hosts(content):
            return {}
        nodes = content["available_node_types"].items()
        most: dict[str, float] = {}
        for kind, node in nodes:
            count = 1 if kind == content["head_node_type"] else node.get("max_workers", 0)
            for resource, each in node.get("resources", {}).items():
                most[resource] = most.get(resource, 0.0) + float(count * each)
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError):
        return {}
    return most
