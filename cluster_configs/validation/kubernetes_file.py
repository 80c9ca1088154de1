"""Reads Kubernetes documents, mainly those of KubeRay, into scripts, variables, images and pools."""

import contextlib
import shlex
from collections.abc import Iterable, Iterator

from cluster_configs.providers.known_providers import PROVIDERS
from cluster_configs.validation.cluster_file import ClusterFile, FileKind, Pool, Script, Variable
from cluster_configs.validation.yaml_nodes import Node, parse_yaml
from trainers.config.strict_loading import YamlError

DEVICES = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "gpu.intel.com/i915", "google.com/tpu")
# Labels of spot nodes, with their values.
_SPOT = {label: value for provider in PROVIDERS.values() for label, value in provider.spot_labels.items()}
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/env")
_SUFFIXES = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9}
_SUFFIXES |= {f"{unit}i": 2.0 ** (10 * power) for power, unit in enumerate("KMGT", start=1)}


def read_kubernetes(documents: list[Node]) -> ClusterFile:
    """Reads a file of Kubernetes documents."""
    containers = [each for document in documents for pod in pod_specs(document) for each in containers_of(pod)]
    clusters = [*ray_clusters(documents)]
    owners = [*containers, *(cluster.get("autoscalerOptions") for cluster in clusters)]
    return ClusterFile(
        FileKind.KUBERNETES,
        documents=tuple(documents),
        scripts=tuple(script for owner in (*containers, *documents) for script in _scripts(owner)),
        variables=tuple(variable for owner in (*owners, *documents) for variable in _variables(owner)),
        images=tuple(image for owner in owners if (image := owner.get("image")).text),
        pools=tuple(pool for cluster in clusters for pool in _pools(cluster)),
    )


def ray_clusters(documents: Iterable[Node]) -> Iterator[Node]:
    """Yields the spec of each Ray cluster, including those within other resources."""
    for document in documents:
        if document.get("apiVersion").text.startswith("ray.io/"):
            spec = document.get("spec")
            nested = [spec.get(name) for name in ("rayClusterSpec", "rayClusterConfig")]
            yield next((node for node in nested if node.present), spec)


def groups_of(cluster: Node) -> Iterator[Node]:
    """Yields the head group and the worker groups of a Ray cluster."""
    yield cluster.get("headGroupSpec")
    yield from cluster.get("workerGroupSpecs").elements()


def groups_in(documents: Iterable[Node]) -> Iterator[Node]:
    """Yields the groups of all Ray clusters."""
    return (group for cluster in ray_clusters(documents) for group in groups_of(cluster))


def pod_specs(document: Node) -> Iterator[Node]:
    """Yields every pod that a document describes."""
    if document.get("kind").text == "Pod":
        yield document.get("spec")
    yield from (group.get("template", "spec") for group in groups_in([document]))
    for keys in (("submitterPodTemplate", "spec"), ("template", "spec"), ("jobTemplate", "spec", "template", "spec")):
        pod = document.get("spec", *keys)
        if pod.present:
            yield pod


def containers_of(pod: Node) -> Iterator[Node]:
    """Yields containers of a pod, init containers included."""
    yield from pod.get("containers").elements()
    yield from pod.get("initContainers").elements()


def quantity(node: Node) -> float | None:
    """Parses a Kubernetes quantity as a number: `500m` is 0.5; None if it is invalid."""
    text = node.text
    number = text.rstrip("KMGTPEkmi")
    try:
        return float(number) * _SUFFIXES[text[len(number) :]]
    except (ValueError, KeyError):
        return None


def resource(container: Node, name: str) -> float | None:
    """Returns a container's limit of a resource, or else its request; None without both."""
    limit = quantity(container.get("resources", "limits", name))
    return quantity(container.get("resources", "requests", name)) if limit is None else limit


def _scripts(owner: Node) -> Iterator[Script]:
    """Yields the scripts of a container, or a document's entrypoint or ConfigMap scripts."""
    environment = {variable.name: variable.text for variable in _variables(owner)}
    words = [*owner.get("command").elements(), *owner.get("args").elements()]
    if words and words[0].text in _SHELLS:
        # The text after -c is the script; the shell's own options are skipped.
        for node in (node for node in words[1:] if not node.text.startswith("-")):
            yield Script(node.place, node.text, environment)
    elif words:
        yield Script(words[0].place, shlex.join(node.text for node in words), environment)
    entrypoint = owner.get("spec", "entrypoint")
    if entrypoint.text:
        yield Script(entrypoint.place, entrypoint.text)
    if owner.get("kind").text == "ConfigMap":
        for name, node in owner.get("data").items():
            if name.endswith(".sh"):
                yield Script(node.place, node.text)


def _variables(owner: Node) -> Iterator[Variable]:
    """Yields the variables of a container, an autoscaler or a job."""
    for entry in owner.get("env").elements():
        if entry.get("value").present:
            yield Variable(entry.get("value").place, entry.get("value").text, entry.get("name").text)
    runtime_env = owner.get("spec", "runtimeEnvYAML")
    with contextlib.suppress(YamlError):  # KubeRay reports it
        for name, node in (item for part in parse_yaml(runtime_env.text) for item in part.get("env_vars").items()):
            yield Variable(runtime_env.place, node.text, name)


def _pools(cluster: Node) -> Iterator[Pool]:
    for group in groups_of(cluster):
        if not group.present:
            continue
        head = group.place.path.endswith("headGroupSpec")
        pod, parameters = group.get("template", "spec"), group.get("rayStartParams")
        main = next(pod.get("containers").elements(), Node(present=False))
        counts = [count for name in DEVICES if (count := resource(main, name)) is not None]
        own_cpus = parameters.get("num-cpus").number
        yield Pool(
            group,
            head=head,
            spot=_spot(pod),
            cpus=resource(main, "cpu") if own_cpus is None else own_cpus,
            accelerators=sum(counts),
            maximum=1 if head or (most := group.get("maxReplicas").number) is None else most,
        )


def _spot(pod: Node) -> Node | None:
    """Returns the part of a pod's selector, affinity (also a preference) or tolerations that allows spot, if any."""
    selected = (node for key, node in pod.get("nodeSelector").items() if node.text.lower() == _SPOT.get(key))
    affinity = pod.get("affinity", "nodeAffinity")
    terms = [
        *affinity.get("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms").elements(),
        *(one.get("preference") for one in affinity.get("preferredDuringSchedulingIgnoredDuringExecution").elements()),
    ]
    expressions = [expression for term in terms for expression in term.get("matchExpressions").elements()]
    admitted = (_admitted(expression) for expression in [*expressions, *pod.get("tolerations").elements()])
    return next(selected, None) or next((node for node in admitted if node is not None), None)


def _admitted(expression: Node) -> Node | None:
    """Returns the part of an affinity's expression or a toleration that allows spot nodes, if any."""
    key, operator = expression.get("key"), expression.get("operator").text
    if operator == "Exists":
        return key if key.text in _SPOT else None
    values = [expression.get("value"), *expression.get("values").elements()]
    among = operator in ("", "Equal", "In")
    return next((node for node in values if among and node.text.lower() == _SPOT.get(key.text)), None)
