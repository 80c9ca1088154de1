"""RayCluster and RayJob as KubeRay's custom resource definitions want them, with no more rights than they need.

The definitions say which fields there are, their types, enumerations and required fields. What they do not say is not
covered: KubeRay's own validation, admission by Kueue, and whether the pods start.
"""

import shlex
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml
from ray._private.ray_constants import DEFAULT_OBJECT_STORE_MEMORY_PROPORTION
from ray.autoscaler._private.kuberay.autoscaling_config import _get_ray_resources_from_group_spec

from cluster_configs.rendering.cluster_spec import build_cluster_spec
from cluster_configs.rendering.render import render, unused
from cluster_configs.rendering.targets import KubernetesKind, Target
from tests.cluster_configs.validation.custom_resources import custom_resource, schemas_folder, trimmed
from tests.test_architecture import ROOT
from trainers.config.overrides import apply_overrides, parse_override
from trainers.errors import ConfigError

SPEC = yaml.safe_load((ROOT / "cluster_configs" / "specs" / "kuberay.yaml").read_text())


def documents(kind: KubernetesKind, *overrides: str) -> dict[str, Any]:
    content = apply_overrides(SPEC, [parse_override(text) for text in overrides])
    text = render(build_cluster_spec(content, origin="my.yaml"), Target.KUBERAY, kind)
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def cluster_of(found: dict[str, Any]) -> dict[str, Any]:
    cluster: dict[str, Any] = (
        found["RayCluster"]["spec"] if "RayCluster" in found else found["RayJob"]["spec"]["rayClusterSpec"]
    )
    return cluster


def groups_of(cluster: dict[str, Any]) -> dict[str, Any]:
    return {group["groupName"]: group for group in cluster["workerGroupSpecs"]}


def pods_of(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cluster = cluster_of(found)
    yield from (group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]))
    if "RayJob" in found:
        yield found["RayJob"]["spec"]["submitterPodTemplate"]


@pytest.mark.skipif(not schemas_folder().is_dir(), reason=f"no definitions of KubeRay in {schemas_folder()}")
@pytest.mark.parametrize("kind", [*KubernetesKind])
@pytest.mark.integration
def test_the_definition_of_kuberay_accepts_the_resource(kind: KubernetesKind) -> None:
    name = "RayCluster" if kind == KubernetesKind.RAYCLUSTER else "RayJob"
    validator = jsonschema.Draft202012Validator(trimmed(custom_resource(name), below_root=False))
    for override in ("kubernetes.queue=speech", "kubernetes.queue=null"):
        resource = documents(kind, override)[name]
        assert resource["apiVersion"] == "ray.io/v1"
        assert [error.message for error in validator.iter_errors(resource)] == []


@pytest.mark.parametrize("kind", [*KubernetesKind])
def test_nobody_gets_in_without_the_token_or_from_outside(kind: KubernetesKind) -> None:
    found = documents(kind)
    cluster = cluster_of(found)
    assert cluster["authOptions"] == {"mode": "token", "secretName": "speech-token"}
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert "Secret" not in found
    policy = found["NetworkPolicy"]["spec"]
    selected = policy["podSelector"]["matchLabels"].items()
    assert all(selected <= pod["metadata"]["labels"].items() for pod in pods_of(found))
    open_ports = [rule.get("ports") for rule in policy["ingress"]]
    assert open_ports[0] is None, "the cluster's own pods"
    assert all(rule["from"] for rule in policy["ingress"])
    assert open_ports[1:] == [[{"port": 8265}], [{"port": 8090}]][kind == KubernetesKind.RAYCLUSTER :]


def test_the_dashboard_listens_on_loopback_where_nobody_else_needs_it() -> None:
    def host(found: dict[str, Any]) -> str:
        value: str = cluster_of(found)["headGroupSpec"]["rayStartParams"]["dashboard-host"]
        return value

    assert host(documents(KubernetesKind.RAYCLUSTER)) == "127.0.0.1"
    assert host(documents(KubernetesKind.RAYCLUSTER, "kubernetes.clients={app: rayscribe}")) == "0.0.0.0"
    assert host(documents(KubernetesKind.RAYJOB)) == "0.0.0.0"


@pytest.mark.parametrize("kind", [*KubernetesKind])
def test_pods_have_no_rights(kind: KubernetesKind) -> None:
    found = documents(kind, "kubernetes.queue=null")
    assert found["ServiceAccount"]["automountServiceAccountToken"] is False
    assert {*found} == {
        "ServiceAccount",
        "NetworkPolicy",
        "RayCluster" if kind == KubernetesKind.RAYCLUSTER else "RayJob",
    }
    unprivileged = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    for pod in (pod["spec"] for pod in pods_of(found)):
        assert pod["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
        # Of the head's, for the autoscaler.
        assert pod["automountServiceAccountToken"] is (
            pod["containers"][0]["name"] == "ray-head" and kind == "raycluster"
        )
        assert pod["securityContext"]["runAsNonRoot"] is True
        (container,) = pod["containers"]
        assert container["securityContext"] == unprivileged
    # KubeRay adds the autoscaler to the head's pod as a container of its own.
    options = cluster_of(found).get("autoscalerOptions")
    assert (options is None) == (kind == KubernetesKind.RAYJOB)
    assert options is None or options["securityContext"] == unprivileged


def test_the_files_of_one_spec_leave_each_others_account_and_policy() -> None:
    names = [
        {(name, found[name]["metadata"]["name"]) for name in ("ServiceAccount", "NetworkPolicy")}
        for found in (documents(kind) for kind in KubernetesKind)
    ]
    assert not names[0] & names[1]
    selected = [documents(kind)["NetworkPolicy"]["spec"]["podSelector"] for kind in KubernetesKind]
    assert selected[0] != selected[1]


def test_the_shell_that_reads_the_entrypoint_gets_the_words_that_were_meant() -> None:
    storage, recipe = "s3://runs/a b;id", "recipes/(a).yaml"
    job = documents(KubernetesKind.RAYJOB, f"storage={storage}", f"recipe={recipe}")["RayJob"]
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[3:5] == [recipe, "--set"]
    assert words[-1] == f"run.storage_path={storage}"


def test_kueue_gets_the_whole_gang_and_without_it_the_pools_grow() -> None:
    queued = documents(KubernetesKind.RAYCLUSTER)["RayCluster"]
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "speech"
    assert "enableInTreeAutoscaling" not in queued["spec"]
    assert groups_of(queued["spec"])["train"]["replicas"] == 2
    found = documents(KubernetesKind.RAYCLUSTER, "kubernetes.queue=null")
    cluster = cluster_of(found)
    assert cluster["enableInTreeAutoscaling"] is True
    assert groups_of(cluster)["train"]["replicas"] == 0
    assert "kueue.x-k8s.io/queue-name" not in found["RayCluster"]["metadata"]["labels"]
    mounted = [pod["spec"]["automountServiceAccountToken"] for pod in pods_of(found)]
    assert mounted == [True, False, False], "the head's autoscaler alone"
    variables = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "RAYSCRIBE_GROWS_TO", "value": "CPU=116,GPU=8"} in variables


@pytest.mark.parametrize("name", ["on", "null"])
def test_the_name_of_a_pool_stays_a_text(name: str) -> None:
    content = {**SPEC, "pools": {**SPEC["pools"], name: {"cpus": 4, "memory_gb": 16, "labels": {"pool": "small"}}}}
    text = render(build_cluster_spec(content, origin="my.yaml"), Target.KUBERAY, KubernetesKind.RAYJOB)
    (job,) = (document for document in yaml.safe_load_all(text) if document["kind"] == "RayJob")
    group = groups_of(job["spec"]["rayClusterSpec"])[name]
    assert group["template"]["metadata"]["labels"]["app.kubernetes.io/component"] == name
    assert group["labels"] == {"pool": "small"}


def test_devices_have_the_names_of_their_hardware() -> None:
    for hardware, device in (("cuda", "nvidia.com/gpu"), ("rocm", "amd.com/gpu"), ("hpu", "habana.ai/gaudi")):
        group = groups_of(cluster_of(documents(KubernetesKind.RAYJOB, f"pools.train.hardware={hardware}")))["train"]
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"][device] == container["resources"]["requests"][device] == 4
        assert [item["key"] for item in group["template"]["spec"]["tolerations"]] == [device]


def test_only_spot_pools_run_on_spot_nodes() -> None:
    spot = "pools.spot={hardware: cuda, accelerators: 4, cpus: 44, memory_gb: 170, spot: true}"
    selector = "kubernetes.node_selectors={spot: {cloud.google.com/gke-spot: 'true'}}"
    taint = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    cluster = cluster_of(
        documents(KubernetesKind.RAYCLUSTER, spot, selector, f"kubernetes.tolerations={{spot: [{taint}]}}")
    )
    groups = groups_of(cluster)
    assert groups["spot"]["template"]["spec"]["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}
    assert "affinity" not in groups["spot"]["template"]["spec"]
    assert groups["spot"]["template"]["spec"]["tolerations"][1:] == [taint]
    (container,) = groups["spot"]["template"]["spec"]["containers"]
    assert "preemption_agent" in container["lifecycle"]["postStart"]["exec"]["command"][-1]
    assert "lifecycle" not in groups["train"]["template"]["spec"]["containers"][0]
    refused = [{"key": "cloud.google.com/gke-spot", "operator": "NotIn", "values": ["true"]}]
    for template in (cluster["headGroupSpec"]["template"], groups["train"]["template"]):
        affinity = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert affinity["nodeSelectorTerms"] == [{"matchExpressions": refused}]


def test_a_folder_is_a_volume_that_all_pods_share() -> None:
    found = documents(KubernetesKind.RAYJOB, "storage=/shared/runs", "kubernetes.storage_claim=runs")
    ray = [*pods_of(found)][:-1]
    for pod in (pod["spec"] for pod in ray):
        assert {"name": "storage", "persistentVolumeClaim": {"claimName": "runs"}} in pod["volumes"]
        assert {"name": "storage", "mountPath": "/shared/runs"} in pod["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("storage=/shared/runs", "storage: /shared/runs is a folder, which pods do not share"),
        ("kubernetes.storage_claim=runs", "kubernetes.storage_claim: storage is s3://"),
        ("image=null", "image: missing"),
        ("pools.train.spot=true", "kubernetes.node_selectors.train: missing; the pool is spot"),
        ("secrets.A={env: A}", "secrets.A: pods read Kubernetes Secrets"),
        ("exports.PATH=/opt/bin:$PATH", "exports.PATH: /opt/bin:$PATH: pods do not expand variables"),
    ],
)
def test_what_pods_cannot_have_is_refused(override: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        documents(KubernetesKind.RAYJOB, override)
    assert says in str(error.value)


def test_what_a_target_has_no_use_for_is_said() -> None:
    content = {**SPEC, "setup": ["true"], "mail": {"to": "ana@example.org"}}
    spec = build_cluster_spec(content, origin="my.yaml")
    assert unused(spec, Target.KUBERAY) == [
        "mail is not used by kuberay: batch schedulers send mail",
        "setup is not used by kuberay: build it into the image",
    ]
    assert unused(spec, Target.SGE) == []


def test_ray_s_autoscaler_knows_the_devices_of_every_pool() -> None:
    for hardware, name in (("hpu", "HPU"), ("cuda", "GPU")):
        overrides = (f"pools.train.hardware={hardware}", "pools.train.accelerators=8", "kubernetes.queue=null")
        group = groups_of(cluster_of(documents(KubernetesKind.RAYCLUSTER, *overrides)))["train"]
        assert _get_ray_resources_from_group_spec(group, False)[name] == 8


@pytest.mark.parametrize("memory_gb", [1, 5, 15, 16, 20, 31])
def test_ray_s_object_store_fits_into_the_shared_memory(memory_gb: int) -> None:
    cluster = cluster_of(documents(KubernetesKind.RAYCLUSTER, f"head.memory_gb={memory_gb}"))
    (shared,) = (volume for volume in cluster["headGroupSpec"]["template"]["spec"]["volumes"] if "emptyDir" in volume)
    size = int(shared["emptyDir"]["sizeLimit"].rstrip("G"))
    assert size >= memory_gb * DEFAULT_OBJECT_STORE_MEMORY_PROPORTION
