"""Versions: pinned, and the client's."""

import re
from collections.abc import Iterator

from cluster_configs.validation.cluster_file import BATCH, CLUSTERS, ClusterFile, FileKind, Installed, Rule, Violation
from cluster_configs.validation.kubernetes_file import ray_clusters
from cluster_configs.validation.shell_commands import SimpleCommand
from cluster_configs.validation.yaml_nodes import Place

# name[extras]==version of one of the two packages whose versions must be the client's.
_PINNED = re.compile(r"(ray|rayscribe)(?:\[[^\]]*\])?==([^;,\s]+)", re.IGNORECASE)
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")
_FLOATING = frozenset({"latest", "nightly", "main", "master", "dev", "edge", "stable"})
# Options of pip whose value is no requirement.
_PIP_VALUES = frozenset(
    {"-c", "--constraint", "-r", "--requirement", "-e", "--editable", "-i", "--index-url", "--extra-index-url"}
    | {"-f", "--find-links", "-t", "--target", "--prefix", "--python", "--timeout", "--retries", "--cache-dir"}
    | {
        "--only-binary",
        "--no-binary",
        "--platform",
        "--python-version",
        "--implementation",
        "--abi",
        "--proxy",
        "--root",
    }
    | {"--trusted-host", "--upgrade-strategy", "--index-strategy", "--progress-bar", "--config-settings", "--report"}
)
# What installs the others.
_INSTALLERS = frozenset({"pip", "setuptools", "wheel", "uv"})
ALL = CLUSTERS | BATCH | {FileKind.DOCKERFILE}


def _versions(file: ClusterFile, installed: Installed) -> Iterator[tuple[Place, str, str, str]]:
    """Place, text, package and version of everything that names a version of Ray or Rayscribe."""
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
    for place, command in file.commands():
        for word in _requirements(command):
            if pinned := _PINNED.fullmatch(word):
                yield place, word, pinned[1].lower(), pinned[2]


def _same_version(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    ours = {"ray": installed.ray, "rayscribe": installed.rayscribe}
    for place, text, package, version in _versions(file, installed):
        if version != ours[package] and not version.startswith("$"):
            yield Violation(
                place, text, f"use {ours[package]}, which this machine's client has, or install {version} here"
            )


def _pinned_images(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    for image in file.images:
        _, tag = split_image(image.text)
        if "@sha256:" not in image.text and (not tag or tag.lower() in _FLOATING):
            yield Violation(image.place, image.text, "name a version or a digest: NAME:VERSION or NAME@sha256:…")
    if file.document.get("provider", "type").text != "aws":
        return
    for _, node_type in file.document.get("available_node_types").items():
        config = node_type.get("node_config")
        image_id = config.get("ImageId")
        # What Ray takes for both is another image with each version of Ray (_private/aws/config.py:DEFAULT_AMI).
        if image_id.text.lower() in ("", "latest_dlami") and not config.get("LaunchTemplate").present:
            fix = "name an image of the region: ami-…; Ray's own choice changes with its version, and is old"
            yield Violation(image_id.place, image_id.text or "no ImageId", fix)


def _pinned_packages(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    for place, command in file.commands():
        constrained = any(re.match(r"(-c|--constraint|--require-hashes)", word) for word in command.words)
        loose = [word for word in _requirements(command) if not _is_exact(word) and word not in _INSTALLERS]
        if loose and not constrained:
            yield Violation(
                place,
                " ".join(loose),
                "pin each with ==, or add -c constraints.txt: nodes that start later get the same",
            )


def _requirements(command: SimpleCommand) -> list[str]:
    """What `pip install` or `uv pip install` names."""
    words = [*command.words]
    names = [word.rpartition("/")[2] for word in words]
    at = next((index for index, name in enumerate(names) if re.fullmatch(r"pip[\d.]*", name)), None)
    if at is None or "install" not in words[at:]:
        return []
    rest = words[words.index("install", at) + 1 :]
    before = ["", *rest]
    return [word for word, option in zip(rest, before, strict=False) if word[0:1] != "-" and option not in _PIP_VALUES]


def _is_exact(requirement: str) -> bool:
    """Whether a requirement names one version: a pin, a file, a URL, or a variable that holds it."""
    return any(sign in requirement for sign in ("==", "@", "/", "$")) or requirement.endswith((".whl", ".gz", "."))


def split_image(image: str) -> tuple[str, str]:
    """Name and tag of an image; no tag is ""."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "")


RULES = (
    Rule("same-version", "Ray and Rayscribe are the client's versions", ALL, _same_version),
    Rule("pinned-image", "images have a version", ALL, _pinned_images),
    Rule("pinned-packages", "packages that nodes install have a version", ALL, _pinned_packages),
)
