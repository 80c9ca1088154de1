"""Rules of nodes: number, resources, versions, where the driver runs, the storage of runs, and KubeRay's pods."""

import re
from collections.abc import Iterator

from cluster_configs.rendering.node_commands import RAY_VERSION, RAYSCRIBE_VERSION
from cluster_configs.validation.cluster_file import (
    BATCH,
    CLUSTERS,
    KUBERNETES,
    ClusterFile,
    FileKind,
    Rule,
    Violation,
)  # fmt: skip
from cluster_configs.validation.kubernetes_file import (
    DEVICES,
    containers_of,
    groups_in,
    groups_of,
    quantity,
    ray_clusters,
)
from cluster_configs.validation.yaml_nodes import Node, SourceLocation
from trainers.config.parts.scaling_part import CPUS_FOR_DATA
from trainers.config.storage_location import is_absolute, is_url, unsupported_url

GAUDI = "habana.ai/gaudi"
_POOL_SIZES = (("min_workers", "max_workers"), ("minReplicas", "maxReplicas"), ("replicas", "maxReplicas"))


def _driver_not_on_spot(file: ClusterFile) -> Iterator[Violation]:
    for pool in file.pools:
        if pool.head and pool.spot is not None:
            fix = "run the head on demand: drivers of jobs run there, and a lost head ends every run"
            yield Violation(pool.spot.place, pool.spot.text or "spot", fix)


def _cpus_for_data(file: ClusterFile) -> Iterator[Violation]:
    fix = f"add CPUs or a CPU pool: with less than one per GPU and {CPUS_FOR_DATA:g} more, Ray Data would wait forever"
    if not any(pool.accelerators for pool in file.pools) or any(pool.cpus is None for pool in file.pools):
        return
    cpus = sum((pool.cpus or 0) * pool.maximum for pool in file.pools)
    workers = sum((pool.accelerators or 0) * pool.maximum for pool in file.pools)
    if cpus < workers + CPUS_FOR_DATA:
        pool = next(pool for pool in file.pools if pool.accelerators)
        yield Violation(pool.node.place, f"{cpus:g} CPU and {workers:g} accelerators in all", fix)


def _accelerators_declared(file: ClusterFile) -> Iterator[Violation]:
    for cluster in ray_clusters(file.documents):
        for group in groups_of(cluster):
            counted = group.get("rayStartParams", "num-gpus")
            devices = [
                container.get("resources", "limits", name)
                for container in containers_of(group.get("template", "spec"))
                for name in DEVICES
            ]
            if (counted.number or 0) > 0 and not any(quantity(node) for node in devices):
                fix = "add it to resources.limits, e.g. nvidia.com/gpu, or Kubernetes gives the pod no GPU"
                yield Violation(counted.place, f"num-gpus: {counted.text}", fix)
            if cluster.get("enableInTreeAutoscaling").value is True:
                yield from _hpus_unknown(group)


def _hpus_unknown(group: Node) -> Iterator[Violation]:
    """Yields Gaudi devices that Ray's autoscaler does not detect, since it reads only GPUs and TPUs from limits."""
    for container in containers_of(group.get("template", "spec")):
        device = container.get("resources", "limits", GAUDI)
        known = group.get("resources", "HPU").present or "HPU" in group.get("rayStartParams", "resources").text
        if quantity(device) and not known:
            fix = f'add resources: {{HPU: "{device.text}"}} to the group, or the autoscaler starts no pod for HPUs'
            yield Violation(device.place, f"{GAUDI}: {device.text}", fix)


def _pool_sizes(file: ClusterFile) -> Iterator[Violation]:
    for pool in file.pools:
        for low, high in _POOL_SIZES:
            least, most = pool.node.get(low), pool.node.get(high)
            if least.number is not None and most.number is not None and least.number > most.number:
                yield Violation(least.place, f"{low}: {least.text}, {high}: {most.text}", f"give {high} at least {low}")


# name[extras]==version of Ray or Rayscribe, whose versions must be the client's.
_PINNED = re.compile(r"(?<![\w.-])(ray|rayscribe)(?:\[[^\]]*\])?==([^;,\s\"']+)", re.IGNORECASE)
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")
# What the versions of a file are compared with.
CLIENT = {"ray": RAY_VERSION, "rayscribe": RAYSCRIBE_VERSION}
_FLOATING = frozenset({"latest", "nightly", "main", "master", "dev", "edge", "stable"})
ALL = CLUSTERS | BATCH


def _versions(file: ClusterFile) -> Iterator[tuple[SourceLocation, str, str, str]]:
    """Yields location, text, package and version of each text that names a version of Ray or Rayscribe."""
    for cluster in ray_clusters(file.documents):
        node = cluster.get("rayVersion")
        if node.text:
            yield node.place, node.text, "ray", node.text
    for image in file.images:
        name, tag = split_image(image.text)
        base = name.rpartition("/")[2]
        package = {"ray": "ray", "ray-ml": "ray", "ray-llm": "ray", "rayscribe": "rayscribe"}.get(base)
        if package is not None and (version := _VERSION.match(tag)):
            yield image.place, image.text, package, version[0]
        if found := re.search(r"ray(\d+\.\d+\.\d+)", tag):
            yield image.place, image.text, "ray", found[1]
    for script in file.scripts:
        for pinned in _PINNED.finditer(script.text):
            line = script.text.count("\n", 0, pinned.start())
            yield script.at(line), pinned[0], pinned[1].lower(), pinned[2]


def _same_version(file: ClusterFile) -> Iterator[Violation]:
    for place, text, package, version in _versions(file):
        if version != CLIENT[package] and not version.startswith("$"):
            fix = f"use {CLIENT[package]}, the version on this machine, or install {version} here"
            yield Violation(place, text, fix)


def _pinned_images(file: ClusterFile) -> Iterator[Violation]:
    for image in file.images:
        _, tag = split_image(image.text)
        if "@sha256:" not in image.text and (not tag or tag.lower() in _FLOATING):
            yield Violation.at(image, "name a version or a digest: NAME:VERSION or NAME@sha256:…")


def split_image(image: str) -> tuple[str, str]:
    """Returns name and tag of an image; the tag is "" if there is none."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "")


# Folders that are local to a machine.
OF_ONE_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/root", "/scratch/local", "/local")
# `run.storage_path=…`, `--storage_path …`.
_STORAGE = re.compile(r"(?:run\.storage_path|--storage[_-]path)(?:=|\s+)['\"]?([^'\"\s]+)")
_ONE_NODE_VOLUMES = ("emptyDir", "hostPath", "ephemeral")
SHARED_FIX = "give an s3://, gs:// or az:// URL, or a folder that every node mounts at the same path"


def _shared_storage(file: ClusterFile) -> Iterator[Violation]:
    for place, path in dict.fromkeys((place, match[1]) for place, match in file.find(_STORAGE)):
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
    """Yields groups whose pods have no shared volume at a path."""
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


def _claim_for_all(file: ClusterFile) -> Iterator[Violation]:
    pods = (group.get("template", "spec") for group in groups_in(file.documents))
    volumes = (volume for pod in pods for volume in pod.get("volumes").elements())
    mounted = {volume.get("persistentVolumeClaim", "claimName").text for volume in volumes}
    for document in file.of_kind("PersistentVolumeClaim"):
        modes = document.get("spec", "accessModes")
        names = [node.text for node in modes.elements()]
        is_shared = "ReadWriteMany" in names or "ReadOnlyMany" in names
        if document.get("metadata", "name").text in mounted and not is_shared:
            yield Violation(modes.place, ", ".join(names), "ask for ReadWriteMany: pods on several nodes use it")


def _container_resources(file: ClusterFile) -> Iterator[Violation]:
    for group in groups_in(file.documents):
        container = next(containers_of(group.get("template", "spec")), None)
        if container is None:
            continue
        resources = container.get("resources")
        for keys in (("limits", "cpu"), ("limits", "memory")):
            if not resources.get(*keys).text:
                fix = f"add resources.{'.'.join(keys)}, from which Ray reads a node's resources"
                yield Violation(resources.get(*keys).place, "", fix)


def _ray_start_blocks(file: ClusterFile) -> Iterator[Violation]:
    fix = "add --block, or the container and thus the node end when this command ends"
    for place, start in file.ray_starts():
        if "--block" not in start.options and not start.symmetric:
            yield Violation(place, "ray start without --block", fix)


def _job_frees_nodes(file: ClusterFile) -> Iterator[Violation]:
    for document in file.of_kind("RayJob"):
        ends = document.get("spec", "shutdownAfterJobFinishes")
        if ends.value is not True and not document.get("spec", "clusterSelector").present:
            yield Violation.at(ends, "set it to true, or the job's GPUs are not released after its end")


RULES = (
    Rule("same-version", ALL, _same_version),
    Rule("pinned-image", ALL, _pinned_images),
    Rule("driver-not-on-spot", CLUSTERS, _driver_not_on_spot),
    Rule("cpus-for-data", CLUSTERS, _cpus_for_data),
    Rule("accelerators-declared", CLUSTERS, _accelerators_declared),
    Rule("pool-sizes", CLUSTERS, _pool_sizes),
    Rule("shared-storage", CLUSTERS | BATCH, _shared_storage),
    Rule("claim-for-all", KUBERNETES, _claim_for_all),
    Rule("container-resources", KUBERNETES, _container_resources),
    Rule("ray-start-blocks", KUBERNETES, _ray_start_blocks),
    Rule("job-frees-nodes", KUBERNETES, _job_frees_nodes),
)
