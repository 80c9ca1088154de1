"""Where runs are kept: a place that every node has, and that outlives it."""

import re
from collections.abc import Iterator

from cluster_configs.validation.cluster_file import BATCH, CLUSTERS, ClusterFile, FileKind, Installed, Rule, Violation
from cluster_configs.validation.kubernetes_file import containers_of, groups_in
from cluster_configs.validation.yaml_nodes import Node, SourceLocation
from trainers.config.storage_location import is_absolute, is_url, unsupported_url

# Folders that are a machine's own wherever they are.
OF_ONE_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/root", "/scratch/local", "/local")
# `run.storage_path=…`, `--storage_path …`.
_STORAGE = re.compile(r"(?:run\.storage_path|--storage[_-]path)(?:=|\s+)['\"]?([^'\"\s]+)")
_ONE_NODE_VOLUMES = ("emptyDir", "hostPath", "ephemeral")
SHARED_FIX = "give an s3://, gs:// or az:// URL, or a folder that every node mounts at the same path"


def storage_paths(file: ClusterFile) -> Iterator[tuple[SourceLocation, str]]:
    """Every storage path that the file names."""
    yield from dict.fromkeys((place, match[1]) for place, match in file.find(_STORAGE))


def _shared_storage(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    for place, path in storage_paths(file):
        if path.startswith(("$", "~")) or is_url(path):
            continue
        problem = unsupported_url(path)
        if problem is not None:
            yield Violation(place, path, problem)
        elif not is_absolute(path) or any(path == own or path.startswith(f"{own}/") for own in OF_ONE_NODE):
            yield Violation(place, path, f"each node has its own: {SHARED_FIX}")
        elif file.kind == FileKind.KUBERNETES:
            yield from _not_mounted(file, place, path)


def _not_mounted(file: ClusterFile, place: SourceLocation, path: str) -> Iterator[Violation]:
    """Groups whose pods have no shared volume at a path."""
    for group in groups_in(file.documents):
        pod = group.get("template", "spec")
        if not group.present or any(_holds(mount, path) for mount in _shared_mounts(pod)):
            continue
        name = group.get("groupName").text or "the head"
        fix = f"mount a persistent volume (ReadWriteMany) there in {name}, or give the URL of a bucket"
        yield Violation(place, path, fix)


def _shared_mounts(pod: Node) -> Iterator[str]:
    own = {
        volume.get("name").text
        for volume in pod.get("volumes").elements()
        if any(volume.get(kind).present for kind in _ONE_NODE_VOLUMES)
    }
    for container in containers_of(pod):
        for mount in container.get("volumeMounts").elements():
            if mount.get("name").text not in own:
                yield mount.get("mountPath").text


def _holds(folder: str, path: str) -> bool:
    return bool(folder) and (path == folder or path.startswith(folder.rstrip("/") + "/"))


def _claim_for_all(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    pods = (group.get("template", "spec") for group in groups_in(file.documents))
    volumes = (volume for pod in pods for volume in pod.get("volumes").elements())
    mounted = {volume.get("persistentVolumeClaim", "claimName").text for volume in volumes}
    for document in file.of_kind("PersistentVolumeClaim"):
        modes = document.get("spec", "accessModes")
        if document.get("metadata", "name").text in mounted and not {node.text for node in modes.elements()} & {
            "ReadWriteMany",
            "ReadOnlyMany",
        }:
            shown = ", ".join(node.text for node in modes.elements())
            yield Violation(modes.place, shown, "ask for ReadWriteMany: pods on several nodes use it")


RULES = (
    Rule("shared-storage", "runs are kept where every node reaches them", CLUSTERS | BATCH, _shared_storage),
    Rule("claim-for-all", "volumes can be mounted on several nodes", frozenset({FileKind.KUBERNETES}), _claim_for_all),
)
