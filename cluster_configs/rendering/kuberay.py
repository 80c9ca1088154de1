"""KubeRay's RayCluster and RayJob, with the service account and the network policy of their pods."""

import math
import shlex
from collections.abc import Mapping
from typing import Any

from cluster_configs.rendering.cluster_spec import ClusterSpec, SecretPart
from cluster_configs.rendering.commented_yaml import to_commented_yaml
from cluster_configs.rendering.node_commands import (
    AGENT,
    IN_BACKGROUND,
    METRICS_PORT,
    RAY_VERSION,
    STOP_VARIABLES,
)
from cluster_configs.rendering.spec_parts import KubernetesPart, PoolPart, growth_variables
from trainers.errors import ConfigError

DASHBOARD_PORT = 8265
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
ABOUT_ACCOUNT = "Pods run as this account. It has no rights, but for those of the autoscaler, which KubeRay gives it."
ABOUT_POLICY = (
    "Who reaches the pods: themselves; for the rest the dashboard's port alone, which asks for the token, and that of "
    "the metrics."
)
ABOUT_DASHBOARD = {
    True: "Others reach the dashboard through the ClusterIP Service: with the token, and as the policy allows.",
    False: "The dashboard listens on loopback, which `kubectl port-forward` reaches.",
}
# How often a job whose cluster was lost is started again; it continues from its last checkpoint.
MAX_RETRIES = 2
IDLE_S = 600

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
# What programs on a device need in their environment, by hardware.
DEVICE_VARIABLES = {"hpu": {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}}
# Seconds that a pod may take to end: a last checkpoint.
GRACE_S = 120
# Share of a pod's memory that Ray's object store takes, in shared memory (ray: DEFAULT_OBJECT_STORE_MEMORY_PROPORTION).
OBJECT_STORE = 0.3


def raycluster_file(spec: ClusterSpec) -> str:
    """A RayCluster that stays, and takes jobs.

    Raises:
        ConfigError: the spec lacks what Kubernetes needs, or says what it does not have.
    """
    part = spec.kubernetes or KubernetesPart()
    cluster = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _metadata(spec, part, for_job=False),
        "spec": _cluster(spec, part, for_job=False),
    }
    use = f"kubectl apply -f raycluster.yaml\n  kubectl port-forward -n {part.namespace} svc/{spec.name}-head-svc 8265"
    return _file("A Ray cluster that takes jobs.", use, spec, part, cluster, for_job=False)


def rayjob_file(spec: ClusterSpec) -> str:
    """A RayJob: a cluster that trains one recipe, and ends.

    Raises:
        ConfigError: the spec lacks what Kubernetes needs, or says what it does not have.
    """
    part = spec.kubernetes or KubernetesPart()
    deadline = {"activeDeadlineSeconds": part.active_deadline_s} if part.active_deadline_s else {}
    submitter = pod_template(
        spec, part, SUBMITTER, for_job=True, container="ray-job-submitter", resources=requests(1, 1)
    )
    submitter["spec"]["restartPolicy"] = "Never"
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _metadata(spec, part, for_job=True),
        "spec": {
            # A shell reads it.
            "entrypoint": f"python task.py --config {shlex.quote(spec.recipe)} --set run.name={spec.name} "
            f"--set {shlex.quote(f'run.storage_path={spec.storage}')}",
            "backoffLimit": MAX_RETRIES,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": part.ttl_after_finished_s,
            **deadline,
            "submitterPodTemplate": submitter,
            "rayClusterSpec": _cluster(spec, part, for_job=True),
        },
    }
    use = f"kubectl apply -f rayjob.yaml\n  kubectl logs -n {part.namespace} -f job/{spec.name}"
    return _file("A Ray cluster that trains one recipe, and ends.", use, spec, part, job, for_job=True)


def _file(
    what: str, use: str, spec: ClusterSpec, part: KubernetesPart, resource: dict[str, Any], *, for_job: bool
) -> str:
    create = f"kubectl create secret generic -n {part.namespace} {_secret(spec, part)}"
    head = (
        f"{what} Rendered by `rayscribe cluster render`; change the spec, and render it again. KubeRay 1.6 or later, "
        f"in the namespace {part.operator_namespace}.\n"
        "The token's Secret is made once, without showing it:\n"
        f"  openssl rand -hex 32 | tr -d '\\n' | {create} --from-file=auth_token=/dev/stdin\n"
        f"Then:\n  {use}\n"
    )
    metadata = {"name": service_account(spec, part, for_job=for_job), "namespace": part.namespace}
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": False,
    }
    documents = [
        to_commented_yaml(account, {"automountServiceAccountToken": ABOUT_ACCOUNT}, head),
        to_commented_yaml(_policy(spec, part, for_job=for_job), {"spec/ingress": ABOUT_POLICY}),
        to_commented_yaml(resource, _comments(spec, part, for_job=for_job)),
    ]
    return "---\n".join(documents)


def _metadata(spec: ClusterSpec, part: KubernetesPart, *, for_job: bool) -> dict[str, Any]:
    labels = {INSTANCE: instance(spec, for_job=for_job), **({QUEUE_LABEL: part.queue} if part.queue else {})}
    return {"name": spec.name, "namespace": part.namespace, "labels": labels}


def _secret(spec: ClusterSpec, part: KubernetesPart) -> str:
    return part.token_secret or f"{spec.name}-token"


def _policy(spec: ClusterSpec, part: KubernetesPart, *, for_job: bool) -> dict[str, Any]:
    name = instance(spec, for_job=for_job)
    own = {"matchLabels": {INSTANCE: name}}
    ingress: list[dict[str, Any]] = [{"from": [{"podSelector": own}]}]
    if for_job:
        operator = {
            "namespaceSelector": _namespace(part.operator_namespace),
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}},
        }
        ingress.append({"from": [operator], "ports": [{"port": DASHBOARD_PORT}]})
    if part.clients:
        clients = {"podSelector": {"matchLabels": part.clients}}
        ingress.append({"from": [clients], "ports": [{"port": DASHBOARD_PORT}]})
    if part.monitoring_namespace:
        monitoring = {"namespaceSelector": _namespace(part.monitoring_namespace)}
        ingress.append({"from": [monitoring], "ports": [{"port": METRICS_PORT}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": part.namespace},
        "spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _namespace(name: str) -> dict[str, Any]:
    return {"matchLabels": {"kubernetes.io/metadata.name": name}}


def grows(spec: ClusterSpec, part: KubernetesPart, *, for_job: bool) -> bool:
    """Whether the pools grow and shrink: a job, and what Kueue admits, has all its nodes from the start."""
    return not for_job and part.queue is None and any(pool.min < pool.max for pool in spec.pools.values())


def _cluster(spec: ClusterSpec, part: KubernetesPart, *, for_job: bool) -> dict[str, Any]:
    autoscaled = grows(spec, part, for_job=for_job)
    scaling: dict[str, Any] = {}
    if autoscaled:
        options = {"version": "v2", "idleTimeoutSeconds": IDLE_S, "resources": requests(1, 1)}
        scaling = {
            "enableInTreeAutoscaling": True,
            "autoscalerOptions": {**options, "securityContext": UNPRIVILEGED},
        }
    open_dashboard = for_job or part.clients
    head = pod_template(
        spec,
        part,
        HEAD,
        for_job=for_job,
        container="ray-head",
        resources=requests(spec.head.cpus, spec.head.memory_gb),
        variables={**STOP_VARIABLES, **(growth_variables(spec.head, spec.pools) if autoscaled else {})},
        ports={"gcs-server": 6379, "dashboard": DASHBOARD_PORT, "metrics": METRICS_PORT},
    )
    head["spec"]["automountServiceAccountToken"] = autoscaled
    return {
        "rayVersion": RAY_VERSION,
        "authOptions": {"mode": "token", "secretName": _secret(spec, part)},
        **scaling,
        "headGroupSpec": {
            "serviceType": "ClusterIP",
            "rayStartParams": {
                "dashboard-host": "0.0.0.0" if open_dashboard else "127.0.0.1",
                "num-cpus": str(spec.head.ray_cpus),
                "num-gpus": "0",
                "metrics-export-port": str(METRICS_PORT),
            },
            "labels": {"pool": "head"},
            "template": head,
        },
        "workerGroupSpecs": [_group(spec, part, name, for_job=for_job, autoscaled=autoscaled) for name in spec.pools],
    }


def _group(spec: ClusterSpec, part: KubernetesPart, name: str, *, for_job: bool, autoscaled: bool) -> Mapping[str, Any]:
    pool = spec.pools[name]
    template = pod_template(
        spec,
        part,
        name,
        for_job=for_job,
        container="ray-worker",
        resources=requests(pool.cpus, pool.memory_gb, pool),
        variables=DEVICE_VARIABLES.get(pool.hardware, {}) | ({"RAY_NODE_MARKET_TYPE": "spot"} if pool.spot else {}),
        ports={"metrics": METRICS_PORT},
    )
    if pool.spot:
        start = {"exec": {"command": ["bash", "-c", f"{AGENT} {IN_BACKGROUND}"]}}
        template["spec"]["containers"][0]["lifecycle"] = {"postStart": start}
    # In the limits of a container Ray's autoscaler looks for CPUs and GPUs alone.
    others = {name: str(each) for name, each in pool.resources.items() if name not in ("CPU", "GPU")}
    return {
        "groupName": name,
        "replicas": pool.min if autoscaled else pool.max,
        "minReplicas": pool.min if autoscaled else pool.max,
        "maxReplicas": pool.max,
        "rayStartParams": {"metrics-export-port": str(METRICS_PORT)},
        "labels": {"pool": name, **pool.labels},
        **({"resources": others} if others else {}),
        "template": template,
    }


def _comments(spec: ClusterSpec, part: KubernetesPart, *, for_job: bool) -> dict[str, str]:
    root = "spec/rayClusterSpec" if for_job else "spec"
    spot = any(pool.spot for pool in spec.pools.values())
    size = (
        "Kueue admits the complete gang, so every pool has its max from the start."
        if part.queue
        else "All pools have their max from the start."
    )
    found = {
        "metadata/labels": "The queue is Kueue's." if part.queue else "No queue.",
        "spec/entrypoint": "The run has the cluster's name, so that a retry continues it. The recipe is in the image.",
        f"{root}/authOptions": "Ray asks every caller for the token.",
        f"{root}/headGroupSpec": "The driver runs here." + (" Its node is never one of a spot pool." if spot else ""),
        f"{root}/headGroupSpec/rayStartParams": ABOUT_DASHBOARD[bool(for_job or part.clients)],
        f"{root}/workerGroupSpecs": size,
    }
    if grows(spec, part, for_job=for_job):
        found[f"{root}/workerGroupSpecs"] = "Ray's autoscaler starts pods when jobs ask for them."
    if spot:
        found[f"{root}/workerGroupSpecs"] += (
            " An agent drains a spot pool's node, where pods reach the cloud's metadata service; elsewhere they get "
            "SIGTERM, and training goes on from the last checkpoint."
        )
    return found


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
            "claim (ReadWriteMany), or give the URL of a bucket"
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
