"""Renders KubeRay's RayCluster and RayJob, with the service account and the network policy of their pods."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster_configs.rendering.cluster_spec import ClusterSpec, SecretPart
from cluster_configs.rendering.commented_yaml import to_commented_yaml
from cluster_configs.rendering.node_commands import AGENT, IN_BACKGROUND, METRICS_PORT, RAY_VERSION, STOP_VARIABLES
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
# Restarts of a job whose cluster was lost; it continues from its last checkpoint.
MAX_RETRIES = 2
IDLE_S = 600

INSTANCE, COMPONENT = "app.kubernetes.io/instance", "app.kubernetes.io/component"
HEAD, SUBMITTER = "head", "submitter"
# User of cluster_configs/Dockerfile.
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
# Variables that programs on a device need, by hardware.
DEVICE_VARIABLES = {"hpu": {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}}
# Time that a pod has to end, for a last checkpoint. Seconds.
GRACE_S = 120
# Share of a pod's memory for Ray's object store, in shared memory (ray: DEFAULT_OBJECT_STORE_MEMORY_PROPORTION).
OBJECT_STORE = 0.3


def raycluster_file(spec: ClusterSpec) -> str:
    """Renders a RayCluster, which stays and accepts jobs; raises as `rayjob_file`."""
    file = _File(spec, for_job=False)
    forward = f"kubectl port-forward -n {file.part.namespace} svc/{spec.name}-head-svc 8265"
    use = f"kubectl apply -f raycluster.yaml\n  {forward}"
    return file.text("A Ray cluster that takes jobs.", use, "RayCluster", file.cluster())


def rayjob_file(spec: ClusterSpec) -> str:
    """Renders a RayJob: a cluster that trains one recipe, and ends.

    Raises:
        ConfigError: the spec lacks what Kubernetes needs, or has what Kubernetes does not support.
    """
    file = _File(spec, for_job=True)
    submitter = file.pod_template(SUBMITTER, "ray-job-submitter", requests(1, 1))
    submitter["spec"]["restartPolicy"] = "Never"
    job = {
        # Quoted, since a shell reads it.
        "entrypoint": f"python task.py --config {shlex.quote(spec.recipe)} --set run.name={spec.name} "
        f"--set {shlex.quote(f'run.storage_path={spec.storage}')}",
        "backoffLimit": MAX_RETRIES,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": file.part.ttl_after_finished_s,
        **({"activeDeadlineSeconds": file.part.active_deadline_s} if file.part.active_deadline_s else {}),
        "submitterPodTemplate": submitter,
        "rayClusterSpec": file.cluster(),
    }
    use = f"kubectl apply -f rayjob.yaml\n  kubectl logs -n {file.part.namespace} -f job/{spec.name}"
    return file.text("A Ray cluster that trains one recipe, and ends.", use, "RayJob", job)


@dataclass(frozen=True)
class _File:
    """The file of a spec's RayCluster, or if `for_job` is True, of its RayJob."""

    spec: ClusterSpec
    for_job: bool

    @property
    def part(self) -> KubernetesPart:
        return self.spec.kubernetes or KubernetesPart()

    @property
    def instance(self) -> str:
        """Name that is unique to this file, so that RayCluster and RayJob of one spec keep apart."""
        return f"{self.spec.name}-{'rayjob' if self.for_job else 'raycluster'}"

    @property
    def service_account(self) -> str:
        return self.part.service_account or self.instance

    @property
    def secret(self) -> str:
        return self.part.token_secret or f"{self.spec.name}-token"

    @property
    def grows(self) -> bool:
        """True if the pools grow and shrink: a job, and a cluster of a Kueue queue, has all nodes from the start."""
        grow = any(pool.min < pool.max for pool in self.spec.pools.values())
        return not self.for_job and self.part.queue is None and grow

    @property
    def opens_dashboard(self) -> bool:
        return self.for_job or bool(self.part.clients)

    def text(self, what: str, use: str, kind: str, content: dict[str, Any]) -> str:
        create = f"kubectl create secret generic -n {self.part.namespace} {self.secret}"
        head = (
            f"{what} Rendered by `rayscribe cluster render`; change the spec, and render it again. KubeRay 1.6 or "
            f"later, in the namespace {self.part.operator_namespace}.\n"
            "The token's Secret is made once, without showing it:\n"
            f"  openssl rand -hex 32 | tr -d '\\n' | {create} --from-file=auth_token=/dev/stdin\n"
            f"Then:\n  {use}\n"
        )
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": self.service_account, "namespace": self.part.namespace},
            "automountServiceAccountToken": False,
        }
        labels = {INSTANCE: self.instance, **({QUEUE_LABEL: self.part.queue} if self.part.queue else {})}
        resource = {
            "apiVersion": "ray.io/v1",
            "kind": kind,
            "metadata": {"name": self.spec.name, "namespace": self.part.namespace, "labels": labels},
            "spec": content,
        }
        documents = [
            to_commented_yaml(account, {"automountServiceAccountToken": ABOUT_ACCOUNT}, head),
            to_commented_yaml(self._policy(), {"spec/ingress": ABOUT_POLICY}),
            to_commented_yaml(resource, self._comments()),
        ]
        return "---\n".join(documents)

    def _policy(self) -> dict[str, Any]:
        own, part = {"matchLabels": {INSTANCE: self.instance}}, self.part
        ingress: list[dict[str, Any]] = [{"from": [{"podSelector": own}]}]
        if self.for_job:
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
            "metadata": {"name": self.instance, "namespace": self.part.namespace},
            "spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": ingress},
        }

    def cluster(self) -> dict[str, Any]:
        """Returns the spec of the Ray cluster; raises as `pod_template`."""
        spec, scaling = self.spec, {}
        variables: dict[str, str] = STOP_VARIABLES
        if self.grows:
            options = {"version": "v2", "idleTimeoutSeconds": IDLE_S, "resources": requests(1, 1)}
            scaling = {
                "enableInTreeAutoscaling": True,
                "autoscalerOptions": {**options, "securityContext": UNPRIVILEGED},
            }
            variables = {**variables, **growth_variables(spec.head, spec.pools)}
        ports = {"gcs-server": 6379, "dashboard": DASHBOARD_PORT, "metrics": METRICS_PORT}
        size = requests(spec.head.cpus, spec.head.memory_gb)
        head = self.pod_template(HEAD, "ray-head", size, variables, ports)
        head["spec"]["automountServiceAccountToken"] = self.grows
        return {
            "rayVersion": RAY_VERSION,
            "authOptions": {"mode": "token", "secretName": self.secret},
            **scaling,
            "headGroupSpec": {
                "serviceType": "ClusterIP",
                "rayStartParams": {
                    "dashboard-host": "0.0.0.0" if self.opens_dashboard else "127.0.0.1",
                    "num-cpus": str(spec.head.ray_cpus),
                    "num-gpus": "0",
                    "metrics-export-port": str(METRICS_PORT),
                },
                "labels": {"pool": "head"},
                "template": head,
            },
            "workerGroupSpecs": [self._group(name, pool) for name, pool in spec.pools.items()],
        }

    def _group(self, name: str, pool: PoolPart) -> Mapping[str, Any]:
        variables = DEVICE_VARIABLES.get(pool.hardware, {}) | ({"RAY_NODE_MARKET_TYPE": "spot"} if pool.spot else {})
        size = requests(pool.cpus, pool.memory_gb, pool)
        template = self.pod_template(name, "ray-worker", size, variables, {"metrics": METRICS_PORT})
        if pool.spot:
            start = {"exec": {"command": ["bash", "-c", f"{AGENT} {IN_BACKGROUND}"]}}
            template["spec"]["containers"][0]["lifecycle"] = {"postStart": start}
        # In the limits of a container Ray's autoscaler only looks for CPUs and GPUs.
        others = {name: str(each) for name, each in pool.resources.items() if name not in ("CPU", "GPU")}
        least = pool.min if self.grows else pool.max
        return {
            "groupName": name,
            "replicas": least,
            "minReplicas": least,
            "maxReplicas": pool.max,
            "rayStartParams": {"metrics-export-port": str(METRICS_PORT)},
            "labels": {"pool": name, **pool.labels},
            **({"resources": others} if others else {}),
            "template": template,
        }

    def _comments(self) -> dict[str, str]:
        root = "spec/rayClusterSpec" if self.for_job else "spec"
        spot = any(pool.spot for pool in self.spec.pools.values())
        size = "All pools have their max from the start."
        if self.part.queue:
            size = "Kueue admits the complete gang, so every pool has its max from the start."
        if self.grows:
            size = "Ray's autoscaler starts pods when jobs ask for them."
        if spot:
            size += (
                " An agent drains a spot pool's node, where pods reach the cloud's metadata service; elsewhere they "
                "get SIGTERM, and training goes on from the last checkpoint."
            )
        on_demand = " Its node is never one of a spot pool." if spot else ""
        return {
            "metadata/labels": "The queue is Kueue's." if self.part.queue else "No queue.",
            "spec/entrypoint": "The run has the cluster's name, so that a retry continues it. The recipe is in the "
            "image.",
            f"{root}/authOptions": "Ray asks every caller for the token.",
            f"{root}/headGroupSpec": f"The driver runs here.{on_demand}",
            f"{root}/headGroupSpec/rayStartParams": ABOUT_DASHBOARD[self.opens_dashboard],
            f"{root}/workerGroupSpecs": size,
        }

    def pod_template(
        self,
        component: str,
        container: str,
        resources: dict[str, Any],
        variables: Mapping[str, str] | None = None,
        ports: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """Returns a pod of the cluster with its one container.

        Raises:
            ConfigError: the spec has no image, or has what Kubernetes does not support.
        """
        spec, part = self.spec, self.part
        if spec.image is None:
            raise ConfigError("image: missing; pods run an image, built from cluster_configs/Dockerfile")
        volumes, mounts = _volumes(spec, part, resources["limits"]["memory"])
        main: dict[str, Any] = {"name": container, "image": spec.image}
        main |= {"securityContext": UNPRIVILEGED, "resources": resources}
        pod: dict[str, Any] = {
            "serviceAccountName": self.service_account,
            "automountServiceAccountToken": False,
            "securityContext": NO_ROOT,
            "terminationGracePeriodSeconds": GRACE_S,
            **_placement(spec, part, component),
            "containers": [main],
        }
        # The pod that submits a job runs no Ray, and needs neither secrets nor the storage.
        if component != SUBMITTER:
            main["env"] = _environment(spec, variables or {})
            main["ports"] = [{"name": name, "containerPort": port} for name, port in (ports or {}).items()]
            main["volumeMounts"] = mounts
            pod["volumes"] = volumes
        if part.image_pull_secrets:
            pod["imagePullSecrets"] = [{"name": name} for name in part.image_pull_secrets]
        return {"metadata": {"labels": {INSTANCE: self.instance, COMPONENT: component}}, "spec": pod}


def _namespace(name: str) -> dict[str, Any]:
    return {"matchLabels": {"kubernetes.io/metadata.name": name}}


def requests(cpus: int, memory_gb: int, pool: PoolPart | None = None) -> dict[str, Any]:
    """Returns resources of a container, with equal limits and requests."""
    amounts: dict[str, Any] = {"cpu": cpus, "memory": f"{memory_gb}G"}
    if pool is not None and pool.accelerators:
        amounts[DEVICES[pool.hardware]] = pool.accelerators
    return {"limits": amounts, "requests": dict(amounts)}


def _environment(spec: ClusterSpec, variables: Mapping[str, str]) -> list[dict[str, Any]]:
    for name, value in spec.exports.items():
        if "$" in value:
            raise ConfigError(f"exports.{name}: {value}: pods replace no variables: write the complete value")
    plain = {"RAY_TRAIN_ENABLE_STATE_TRACKING": "1", **variables, **spec.exports}
    secret = [{"name": name, "valueFrom": _source(name, place)} for name, place in spec.secrets.items()]
    return [*({"name": name, "value": value} for name, value in plain.items()), *secret]


def _source(name: str, place: SecretPart) -> dict[str, Any]:
    if place.kubernetes is None:
        raise ConfigError(f"secrets.{name}: pods have Secrets: give kubernetes: the name of one with the key {name}")
    return {"secretKeyRef": {"name": place.kubernetes, "key": name}}


def _volumes(spec: ClusterSpec, part: KubernetesPart, memory: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    # If the object store is larger than shared memory, Ray keeps its objects on the disk.
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
    """Returns the scheduling of a pod: its pool's selector; and on spot nodes only if its pool is spot."""
    for name, other in spec.pools.items():
        if other.spot and not part.node_selectors.get(name):
            raise ConfigError(
                f"kubernetes.node_selectors.{name}: missing; the pool is spot: name the labels of its nodes, e.g. "
                f"{{{name}: {{cloud.google.com/gke-spot: 'true'}}}}, which all other pods avoid"
            )
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
