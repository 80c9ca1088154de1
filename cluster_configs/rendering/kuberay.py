"""Renders KubeRay's RayCluster and RayJob, with the service account and the network policy of their pods."""

import math
from typing import Any

from cluster_configs.rendering.cluster_spec import ClusterSpec
from cluster_configs.rendering.node_commands import AGENT, IN_BACKGROUND, METRICS_PORT, RAY_VERSION, STOP_VARIABLES
from cluster_configs.rendering.spec_parts import HeadPart, KubernetesPart, PoolPart, growth_variables
from cluster_configs.rendering.template import rendered
from trainers.errors import ConfigError

# Kubernetes' names of devices, by hardware.
DEVICES = {"cuda": "nvidia.com/gpu", "rocm": "amd.com/gpu", "hpu": "habana.ai/gaudi"}
# Variables that programs on a device need, by hardware.
DEVICE_VARIABLES = {"hpu": {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}}
# Share of a pod's memory for Ray's object store, in shared memory (ray: DEFAULT_OBJECT_STORE_MEMORY_PROPORTION).
OBJECT_STORE = 0.3


def raycluster_file(spec: ClusterSpec) -> str:
    """Renders a RayCluster, which stays and accepts jobs; raises like `rayjob_file`."""
    return _file(spec, for_job=False)


def rayjob_file(spec: ClusterSpec) -> str:
    """Renders a RayJob: a cluster that trains one recipe, and ends.

    Raises:
        ConfigError: the spec lacks what Kubernetes needs, or has what Kubernetes does not support.
    """
    return _file(spec, for_job=True)


def _file(spec: ClusterSpec, *, for_job: bool) -> str:
    part = spec.kubernetes or KubernetesPart()
    _refuse_unsupported(spec, part)
    # Differs by kind, so that the RayCluster and the RayJob of a spec share no objects.
    name = f"{spec.name}-{'rayjob' if for_job else 'raycluster'}"
    # A job, and a cluster of a Kueue queue, has all nodes from the start.
    grows = not for_job and part.queue is None and any(pool.min < pool.max for pool in spec.pools.values())
    return rendered(
        "kuberay.yaml.j2",
        spec=spec,
        part=part,
        for_job=for_job,
        name=name,
        account=part.service_account or name,
        secret=part.token_secret or f"{spec.name}-token",
        grows=grows,
        has_spot=any(pool.spot for pool in spec.pools.values()),
        head_variables=STOP_VARIABLES | (growth_variables(spec.head, spec.pools) if grows else {}),
        ray_version=RAY_VERSION,
        metrics_port=METRICS_PORT,
        agent=f"{AGENT} {IN_BACKGROUND}",
        placement=lambda component: _placement(spec, part, component),
        resources_of=_resources,
        shared_memory_of=_shared_memory,
        variables_of=_variables,
    )


def _refuse_unsupported(spec: ClusterSpec, part: KubernetesPart) -> None:
    if spec.image is None:
        raise ConfigError("image: missing; pods run an image, built from cluster_configs/Dockerfile")
    for name, pool in spec.pools.items():
        if pool.spot and not part.node_selectors.get(name):
            raise ConfigError(
                f"kubernetes.node_selectors.{name}: missing; the pool is spot: name the labels of its nodes, e.g. "
                f"{{{name}: {{cloud.google.com/gke-spot: 'true'}}}}, which all other pods avoid"
            )
    is_folder = spec.storage.startswith("/")
    if part.storage_claim is not None and not is_folder:
        raise ConfigError(f"kubernetes.storage_claim: storage is {spec.storage}: leave one out, or give a folder")
    if part.storage_claim is None and is_folder:
        raise ConfigError(
            f"storage: {spec.storage} is a folder, which pods do not share: set kubernetes.storage_claim to a volume "
            "claim (ReadWriteMany), or give the URL of a bucket"
        )
    for name, value in spec.exports.items():
        if "$" in value:
            raise ConfigError(f"exports.{name}: {value}: pods do not expand variables: write the full value")
    for name, place in spec.secrets.items():
        if place.kubernetes is None:
            raise ConfigError(
                f"secrets.{name}: pods read Kubernetes Secrets: set kubernetes to the name of one with the key {name}"
            )


def _resources(node: HeadPart | PoolPart) -> dict[str, Any]:
    amounts: dict[str, Any] = {"cpu": node.cpus, "memory": f"{node.memory_gb}G"}
    if isinstance(node, PoolPart) and node.accelerators:
        amounts[DEVICES[node.hardware]] = node.accelerators
    return amounts


def _shared_memory(node: HeadPart | PoolPart) -> str:
    """Returns the size of a pod's shared memory, that of the object store; with less, Ray would use the disk."""
    return f"{max(1, math.ceil(OBJECT_STORE * node.memory_gb))}G"


def _variables(pool: PoolPart) -> dict[str, str]:
    return DEVICE_VARIABLES.get(pool.hardware, {}) | ({"RAY_NODE_MARKET_TYPE": "spot"} if pool.spot else {})


def _placement(spec: ClusterSpec, part: KubernetesPart, component: str) -> dict[str, Any]:
    """Returns the scheduling fields of a pod; pods outside spot pools avoid spot nodes."""
    pool, selector = spec.pools.get(component), part.node_selectors.get(component)
    found: dict[str, Any] = {} if selector is None else {"nodeSelector": selector}
    tolerations: list[dict[str, str]] = [*part.tolerations.get(component, [])]
    if pool is not None and pool.accelerators:
        tolerations.insert(0, {"key": DEVICES[pool.hardware], "operator": "Exists", "effect": "NoSchedule"})
    if tolerations:
        found["tolerations"] = tolerations
    of_spot = [labels for name, labels in part.node_selectors.items() if name in spec.pools and spec.pools[name].spot]
    spot = {item for labels in of_spot for item in labels.items()}
    if spot and not (pool is not None and pool.spot):
        terms = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in sorted(spot)]
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        found["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return found
