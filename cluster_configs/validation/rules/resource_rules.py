"""Nodes: where the driver runs, how many there are, and whether what they have is what Ray is told."""

from collections.abc import Iterator

from cluster_configs.validation.cluster_file import CLUSTERS, RAY_UP, ClusterFile, FileKind, Installed, Rule, Violation
from cluster_configs.validation.kubernetes_file import DEVICES, containers_of, groups_of, quantity, ray_clusters
from cluster_configs.validation.yaml_nodes import Node
from trainers.config.parts.scaling_part import CPUS_FOR_DATA

GAUDI = "habana.ai/gaudi"
_POOL_SIZES = (("min_workers", "max_workers"), ("minReplicas", "maxReplicas"), ("replicas", "maxReplicas"))


def _driver_not_on_spot(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    for pool in file.pools:
        if pool.head and pool.spot is not None:
            fix = "run the head on demand: drivers of jobs run there, and a lost head ends every run"
            yield Violation(pool.spot.place, pool.spot.text or "spot", fix)


def _cpus_for_data(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    fix = (
        f"leave {CPUS_FOR_DATA:g} CPU next to one for each GPU: Ray Data would wait forever (more CPUs, or a CPU pool)"
    )
    if not any(pool.accelerators for pool in file.pools) or any(pool.cpus is None for pool in file.pools):
        return
    cpus = sum((pool.cpus or 0) * _size(pool.maximum) for pool in file.pools)
    workers = sum((pool.accelerators or 0) * _size(pool.maximum) for pool in file.pools)
    if cpus < workers + CPUS_FOR_DATA:
        pool = next(pool for pool in file.pools if pool.accelerators)
        yield Violation(pool.node.place, f"{cpus:g} CPU and {workers:g} accelerators in all", fix)


def _size(maximum: float | None) -> float:
    return 1 if maximum is None else maximum


def _accelerators_declared(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    for cluster in ray_clusters(file.documents):
        for group in groups_of(cluster):
            counted = group.get("rayStartParams", "num-gpus")
            devices = [
                container.get("resources", "limits", name)
                for container in containers_of(group.get("template", "spec"))
                for name in DEVICES
            ]
            if (counted.number or 0) > 0 and not any(quantity(node) for node in devices):
                fix = "add it to resources.limits, e.g. nvidia.com/gpu: Kubernetes gives the pod no GPU without"
                yield Violation(counted.place, f"num-gpus: {counted.text}", fix)
            if cluster.get("enableInTreeAutoscaling").value is True:
                yield from _hpus_unknown(group)


def _hpus_unknown(group: Node) -> Iterator[Violation]:
    """Gaudi devices that Ray's autoscaler does not know of: in limits it looks for GPUs and TPUs alone."""
    for container in containers_of(group.get("template", "spec")):
        device = container.get("resources", "limits", GAUDI)
        known = group.get("resources", "HPU").present or "HPU" in group.get("rayStartParams", "resources").text
        if quantity(device) and not known:
            fix = f'add resources: {{HPU: "{device.text}"}} to the group: its autoscaler starts no pod for HPUs without'
            yield Violation(device.place, f"{GAUDI}: {device.text}", fix)


def _pool_sizes(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    for pool in file.pools:
        for low, high in _POOL_SIZES:
            least, most = pool.node.get(low), pool.node.get(high)
            if least.number is not None and most.number is not None and least.number > most.number:
                yield Violation(least.place, f"{low}: {least.text}, {high}: {most.text}", f"give {high} at least {low}")
    all_of_them, workers = file.document.get("max_workers"), [pool for pool in file.pools if not pool.head]
    least_of_all = sum(pool.node.get("min_workers").number or 0 for pool in workers)
    if file.kind == FileKind.RAY_UP and all_of_them.number is not None and all_of_them.number < least_of_all:
        fix = f"give at least {least_of_all:g}, the sum of the pools' min_workers"
        yield Violation(all_of_them.place, all_of_them.text, fix)


def _head_node_type(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    types, head = file.document.get("available_node_types"), file.document.get("head_node_type")
    if types.present and not types.get(head.text).present:
        yield Violation(head.place, head.text, f"name one of available_node_types: {', '.join(types.children)}")


def _spot_labels(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    for pool in file.pools:
        labels = pool.node.get("labels").value or pool.node.get("rayStartParams", "labels").value
        if pool.spot is not None and not labels:
            fix = "add labels, e.g. {market: spot}, by which a job chooses these nodes or avoids them"
            yield Violation(pool.node.get("labels").place, pool.name, fix)


RULES = (
    Rule("driver-not-on-spot", "the head is not a spot node", CLUSTERS, _driver_not_on_spot),
    Rule("cpus-for-data", "workers leave CPUs for Ray Data", CLUSTERS, _cpus_for_data),
    Rule("accelerators-declared", "Ray and the pods know of their GPUs", CLUSTERS, _accelerators_declared),
    Rule("pool-sizes", "no pool is smaller at most than at least", CLUSTERS, _pool_sizes),
    Rule("head-node-type", "the head's node type is there", RAY_UP, _head_node_type),
    Rule("spot-labels", "spot nodes have labels", CLUSTERS, _spot_labels),
)
