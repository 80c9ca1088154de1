"""Pods of a Ray cluster on Kubernetes: no root, no rights, one image, devices by the hardware of the pool."""

import math
from collections.abc import Mapping
from typing import Any

from cluster_configs.rendering.cluster_spec import ClusterSpec, SecretPart
from cluster_configs.rendering.node_parts import PoolPart
from cluster_configs.rendering.target_parts import KubernetesPart
from trainers.errors import ConfigError

INSTANCE, COMPONENT = "app.kubernetes.io/instance", "app.kubernetes.io/component"
HEAD, SUBMITTER = "head", "submitter"
# The user of cluster_configs/Dockerfile.
USER_ID = 1000
NO_ROOT = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "fsGroup": USER_ID,
    "seccompProfile": {"type": "RuntimeDefault"},
}
UNPRIVILEGED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
# Kubernetes' names of devices, by hardware.
DEVICES = {"cuda": "nvidia.com/gpu", "rocm": "amd.com/gpu", "hpu": "habana.ai/gaudi"}
# Seconds that a pod may take to end: a last checkpoint.
GRACE_S = 120
# Share of a pod's memory that Ray's object store takes, in shared memory (ray: DEFAULT_OBJECT_STORE_MEMORY_PROPORTION).
OBJECT_STORE = 0.3


def requests(cpus: int, memory_gb: int, pool: PoolPart | None = None) -> dict[str, Any]:
    """Resources of a container; it gets what it asks for, no more and no less."""
    amounts: dict[str, Any] = {"cpu": cpus, "memory": f"{memory_gb}G"}
    if pool is not None and pool.accelerators:
        amounts[DEVICES[pool.hardware]] = pool.accelerators
    return {"limits": amounts, "requests": dict(amounts)}


def instance(spec: ClusterSpec, *, for_job: bool) -> str:
    """What is of one file alone, so that RayCluster and RayJob of one spec leave each other's as it is."""
    return f"{spec.name}-{'rayjob' if for_job else 'raycluster'}"


def service_account(spec: ClusterSpec, part: KubernetesPart, *, for_job: bool) -> str:
    """Name of the account that the pods run as."""
    return part.service_account or instance(spec, for_job=for_job)


def pod_template(
    spec: ClusterSpec,
    part: KubernetesPart,
    component: str,
    *,
    for_job: bool,
    container: str,
    resources: dict[str, Any],
    variables: Mapping[str, str] | None = None,
    ports: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """A pod of the cluster with its one container.

    Raises:
        ConfigError: the spec has no image, or says what Kubernetes does not have.
    """
    if spec.image is None:
        raise ConfigError("image: missing; pods run an image, built from cluster_configs/Dockerfile")
    volumes, mounts = _volumes(spec, part, resources["limits"]["memory"])
    main: dict[str, Any] = {"name": container, "image": spec.image, "securityContext": UNPRIVILEGED}
    main["resources"] = resources
    pod: dict[str, Any] = {
        "serviceAccountName": service_account(spec, part, for_job=for_job),
        "automountServiceAccountToken": False,
        "securityContext": NO_ROOT,
        "terminationGracePeriodSeconds": GRACE_S,
        **_placement(spec, part, component),
        "containers": [main],
    }
    # What submits a job runs no Ray, and needs neither secrets nor the storage.
    if component != SUBMITTER:
        main["env"] = _environment(spec, variables or {})
        main["ports"] = [{"name": name, "containerPort": port} for name, port in (ports or {}).items()]
        main["volumeMounts"] = mounts
        pod["volumes"] = volumes
    if part.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in part.image_pull_secrets]
    labels = {INSTANCE: instance(spec, for_job=for_job), COMPONENT: component}
    return {"metadata": {"labels": labels}, "spec": pod}


def _environment(spec: ClusterSpec, variables: Mapping[str, str]) -> list[dict[str, Any]]:
    for name, value in spec.exports.items():
        if "$" in value:
            raise ConfigError(f"exports.{name}: {value}: pods replace no variables: write the whole value")
    plain = {"RAY_TRAIN_ENABLE_STATE_TRACKING": "1", **variables, **spec.exports}
    secret = [{"name": name, "valueFrom": _source(name, place)} for name, place in spec.secrets.items()]
    return [*({"name": name, "value": value} for name, value in plain.items()), *secret]


def _source(name: str, place: SecretPart) -> dict[str, Any]:
    if place.kubernetes is None:
        raise ConfigError(f"secrets.{name}: pods have Secrets: give kubernetes: the name of one with the key {name}")
    return {"secretKeyRef": {"name": place.kubernetes, "key": name}}


def _volumes(spec: ClusterSpec, part: KubernetesPart, memory: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    # Where it is larger, Ray keeps its objects on the disk.
    size = f"{max(1, math.ceil(OBJECT_STORE * int(memory.rstrip('G'))))}G"
    volumes: list[dict[str, Any]] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": size}}]
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    if part.storage_claim is not None:
        if not spec.storage.startswith("/"):
            raise ConfigError(f"kubernetes.storage_claim: storage is {spec.storage}: leave one out, or give a folder")
        volumes.append({"name": "storage", "persistentVolumeClaim": {"claimName": part.storage_claim}})
        mounts.append({"name": "storage", "mountPath": spec.storage})
    elif spec.storage.startswith("/"):
        raise ConfigError(
            f"storage: {spec.storage} is a folder, which pods do not share: set kubernetes.storage_claim to a volume "
            "claim (ReadWriteMany), or give an s3:// URL"
        )
    return volumes, mounts


def _placement(spec: ClusterSpec, part: KubernetesPart, component: str) -> dict[str, Any]:
    """Where a pod goes: what its pool selects; and on spot nodes only if its pool is."""
    for name, other in spec.pools.items():
        if other.spot and not part.node_selectors.get(name):
            raise ConfigError(
                f"kubernetes.node_selectors.{name}: missing; the pool is spot: name the labels of its nodes, e.g. "
                f"{{{name}: {{cloud.google.com/gke-spot: 'true'}}}}, which all other pods avoid"
            )
    found: dict[str, Any] = {}
    pool = spec.pools.get(component)
    if component in part.node_selectors:
        found["nodeSelector"] = part.node_selectors[component]
    tolerations: list[dict[str, str]] = [*part.tolerations.get(component, [])]
    if pool is not None and pool.accelerators:
        tolerations.insert(0, {"key": DEVICES[pool.hardware], "operator": "Exists", "effect": "NoSchedule"})
    if tolerations:
        found["tolerations"] = tolerations
    spot = {
        (key, value)
        for name, selector in part.node_selectors.items()
        if name in spec.pools and spec.pools[name].spot
        for key, value in selector.items()
    }
    if spot and not (pool is not None and pool.spot):
        terms = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in sorted(spot)]
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        found["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return found
