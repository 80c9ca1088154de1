"""Rules of access: the token, the dashboard, SSH, the metadata service, Kubernetes Services and policies, root."""

import ipaddress
import re
from collections.abc import Iterator

from cluster_configs.validation.cluster_file import (
    BATCH,
    CLUSTERS,
    KUBERNETES,
    RAY_UP,
    ClusterFile,
    FileKind,
    Rule,
    Violation,
    is_the_world,
)  # fmt: skip
from cluster_configs.validation.kubernetes_file import containers_of, groups_in, groups_of, pod_specs, ray_clusters
from cluster_configs.validation.yaml_nodes import Node

START_COMMANDS = ("head_start_ray_commands", "worker_start_ray_commands")
# Options of docker run with which a container can control its host.
_ON_HOST = re.compile(
    r"--privileged|docker\.sock|--pid[= ]host|(-v|--volume)[= ]?/:|(-u|--user)[= ]?(root|0)\b", re.I
)  # fmt: skip
_ADDED = re.compile(r"--cap-add[= ]\s*['\"]?(\w+)", re.I)
# Capabilities of Kubernetes' baseline standard (kubernetes.io/docs/concepts/security/pod-security-standards), and
# those that RDMA and Gaudi need: locked memory and priorities.
_HARMLESS = frozenset(
    {"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP"}
    | {"SETGID", "SETPCAP", "SETUID", "SYS_CHROOT", "IPC_LOCK", "SYS_NICE"}
)
# Kubernetes sets this label on every namespace.
_OF_ALL_NAMESPACES = "kubernetes.io/metadata.name"
OUTSIDE = ("NodePort", "LoadBalancer")
FORWARD = "rayscribe cluster dashboard NAME, or ssh -L 8265:127.0.0.1:8265 HEAD, forwards its port"


def _token_authentication(file: ClusterFile) -> Iterator[Violation]:
    fix = "set RAY_AUTH_MODE=token before it, or export it in the same command, or anyone who can connect runs code"
    for place, start in file.ray_starts():
        mode = start.environment.get("RAY_AUTH_MODE", "")
        if mode.lower() != "token":
            yield Violation(place, f"RAY_AUTH_MODE={mode}" if mode else "ray start without RAY_AUTH_MODE", fix)
    if file.kind == FileKind.RAY_UP:
        for name in START_COMMANDS:
            if not any((commands := file.document.get(name)).elements()):
                yield Violation(commands.place, "", f"write {name} out: Ray's own commands start it without a token")
    modes = (cluster.get("authOptions", "mode") for cluster in ray_clusters(file.documents))
    yield from (Violation.at(each, "set authOptions: {mode: token}") for each in modes if each.text != "token")
    for variable in file.variables if file.kind == FileKind.KUBERNETES else ():
        if variable.name == "RAY_AUTH_MODE" and variable.text.lower() != "token":
            yield Violation(variable.place, f"RAY_AUTH_MODE={variable.text}", "remove it, or set it to token")


def _token_on_every_node(file: ClusterFile) -> Iterator[Violation]:
    mounts = file.document.get("file_mounts")
    targets = [target for target, _ in mounts.items()]
    named = any(start.environment.get("RAY_AUTH_TOKEN_PATH") in targets for _, start in file.ray_starts())
    if not named and not any(target.endswith("/.ray/auth_token") for target in targets):
        fix = "add ~/.ray/auth_token: ~/.rayscribe/clusters/NAME.token to file_mounts"
        yield Violation(mounts.place, ", ".join(targets), fix)


def _dashboard_loopback(file: ClusterFile) -> Iterator[Violation]:
    option = "--dashboard-host"
    fix = f"use {option}=127.0.0.1; {FORWARD}"
    hosts = [(place, host) for place, start in file.ray_starts() if (host := start.options.get(option)) is not None]
    if file.kind == FileKind.KUBERNETES:
        # KubeRay's operator calls the dashboard for a RayJob; these three rules together exclude all other callers.
        guards = (_token_authentication, _inside_the_cluster, _network_policy)
        if not any(violation for guard in guards for violation in guard(file)):
            return
        given = (one.get("headGroupSpec", "rayStartParams", "dashboard-host") for one in ray_clusters(file.documents))
        hosts += [(node.place, node.text) for node in given if node.present]
        fix = "use 127.0.0.1 with kubectl port-forward, or add the token, ClusterIP and NetworkPolicy"
    yield from (Violation(place, f"{option}={host}", fix) for place, host in hosts if not _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _inside_the_cluster(file: ClusterFile) -> Iterator[Violation]:
    fix = "use ClusterIP, and kubectl port-forward from outside"
    heads = [cluster.get("headGroupSpec") for cluster in ray_clusters(file.documents)]
    types = [head.get(*keys) for head in heads for keys in (("serviceType",), ("headService", "spec", "type"))]
    types += [document.get("spec", "type") for document in file.of_kind("Service")]
    for addresses in (document.get("spec", "externalIPs") for document in file.of_kind("Service")):
        yield from (Violation.at(node, fix) for node in addresses.elements())
    yield from (Violation.at(node, fix) for node in types if node.text in OUTSIDE)
    for head in heads:
        if head.get("enableIngress").value is True:
            yield Violation(head.get("enableIngress").place, "true", f"take it out; {fix}")
    for document in file.of_kind("Ingress", "Route", "HTTPRoute"):
        yield Violation.at(document.get("kind"), f"take it out; {fix}")


def _network_policy(file: ClusterFile) -> Iterator[Violation]:
    fix = "add one that admits the cluster's own pods and KubeRay's operator; Ray listens on all addresses"
    for cluster in ray_clusters(file.documents):
        # KubeRay's own network policy restricts ingress in all of its modes except this one.
        own = cluster.get("networkPolicy").present and cluster.get("networkPolicy", "mode").text != "DenyAllEgress"
        groups = [group for group in groups_of(cluster) if group.present and not own]
        policies = [policy for policy in file.of_kind("NetworkPolicy") if any(_guards(policy, one) for one in groups)]
        bare = [group for group in groups if not any(_guards(policy, group) for policy in policies)]
        yield from (Violation(group.place, "no NetworkPolicy for Ingress", fix) for group in bare[:1])
        for rule in (rule for policy in policies for rule in policy.get("spec", "ingress").elements()):
            if not rule.get("from").value:
                yield Violation(rule.place, "a rule without from", "name who may connect; now everybody may")
            for caller in rule.get("from").elements():
                if _is_everybody(caller):
                    yield Violation(caller.place, "everybody", "name the pods, namespace or network that may connect")


def _guards(policy: Node, group: Node) -> bool:
    """Returns True if a policy restricts access to the pods of a group; assumes that selectors by expression match."""
    types = [node.text for node in policy.get("spec", "policyTypes").elements()]
    labels = dict(group.get("template", "metadata", "labels").items())
    selected = policy.get("spec", "podSelector", "matchLabels").items()
    return (not types or "Ingress" in types) and all(
        key.startswith("ray.io/") or (key in labels and labels[key].text == node.text) for key, node in selected
    )


def _is_everybody(caller: Node) -> bool:
    """Returns True if a policy's `from` entry means all pods of all namespaces, or the internet."""
    namespaces, pods = caller.get("namespaceSelector"), caller.get("podSelector")
    all_pods = namespaces.value is not None and _selects_all(namespaces, _OF_ALL_NAMESPACES) and _selects_all(pods)
    return all_pods or is_the_world(caller.get("ipBlock", "cidr").text)


def _selects_all(selector: Node, label_of_all: str = "") -> bool:
    """Returns True if a selector matches all objects; each of them has `label_of_all`."""
    return not selector.get("matchLabels").value and all(
        (each.get("key").text, each.get("operator").text) == (label_of_all, "Exists")
        for each in selector.get("matchExpressions").elements()
    )


def _no_root(file: ClusterFile) -> Iterator[Violation]:
    of_ray = [document for document in file.documents if document.get("apiVersion").text.startswith("ray.io/")]
    for pod in (pod for document in of_ray for pod in pod_specs(document)):
        contexts = [pod.get("securityContext"), *(container.get("securityContext") for container in containers_of(pod))]
        as_root = [node for context in contexts if (node := context.get("runAsUser")).number == 0]
        yield from (Violation(node.place, "0", "give a user other than 0, e.g. 1000") for node in as_root)
        declared = [context.get("runAsNonRoot").value is True for context in contexts]
        if not declared[0] and not (declared[1:] and all(declared[1:])):
            yield Violation(contexts[0].place, "", "set securityContext: {runAsNonRoot: true} for the pod")


def _no_privileges(file: ClusterFile) -> Iterator[Violation]:
    for pod in (pod for document in file.documents for pod in pod_specs(document)):
        flags = [pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")]
        for container in containers_of(pod):
            flags += [container.get("securityContext", name) for name in ("privileged", "allowPrivilegeEscalation")]
            added = container.get("securityContext", "capabilities", "add").elements()
            flags += [node for node in added if not _is_harmless(node.text)]
            flags += [port.get("hostPort") for port in container.get("ports").elements()]
        flags += [volume.get("hostPath") for volume in pod.get("volumes").elements()]
        for node in flags:
            if node.present and node.value is not False:
                yield Violation.at(node, "remove it, since it gives access to other users of the node")
    for owner in [file.document, *file.node_types]:
        for name in ("run_options", "head_run_options", "worker_run_options"):
            fix = "name the devices and capabilities that are needed instead"
            options = list(owner.get("docker", name).elements())
            yield from (Violation.at(each, fix) for each in options if _ON_HOST.search(each.text))
            # An option and its value may be two list elements.
            for added_here in _ADDED.findall(" ".join(each.text for each in options)):
                if not _is_harmless(added_here):
                    yield Violation(owner.get("docker", name).place, f"--cap-add {added_here}", fix)


def _is_harmless(capability: str) -> bool:
    return capability.upper().removeprefix("CAP_") in _HARMLESS


def _least_rights(file: ClusterFile) -> Iterator[Violation]:
    for document in file.of_kind("Role", "ClusterRole"):
        for node in document.get("rules").walk():
            if node.text == "*":
                yield Violation(node.place, "*", "name the resources and verbs that the pods use")
    for document in file.of_kind("RoleBinding", "ClusterRoleBinding"):
        role = document.get("roleRef", "name")
        if role.text in ("cluster-admin", "admin", "edit"):
            yield Violation.at(role, "bind a Role of the file's own, with what the pods use")
    for group in groups_in(file.documents):
        pod = group.get("template", "spec")
        if pod.present and not pod.get("serviceAccountName").text:
            yield Violation(pod.place, "the namespace's default", "name a service account of the cluster's own")


RULES = (
    Rule("token-authentication", CLUSTERS | BATCH, _token_authentication),
    Rule("token-on-every-node", RAY_UP, _token_on_every_node),
    Rule("dashboard-loopback", CLUSTERS | BATCH, _dashboard_loopback),
    Rule("inside-the-cluster", KUBERNETES, _inside_the_cluster),
    Rule("network-policy", KUBERNETES, _network_policy),
    Rule("no-root", KUBERNETES, _no_root),
    Rule("no-privileges", CLUSTERS, _no_privileges),
    Rule("least-rights", KUBERNETES, _least_rights),
)
