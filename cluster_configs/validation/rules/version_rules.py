"""Versions: pinned, and the client's."""

import re
from collections.abc import Iterator

from cluster_configs.validation.cluster_file import BATCH, CLUSTERS, ClusterFile, Installed, Rule, Violation
from cluster_configs.validation.kubernetes_file import ray_clusters
from cluster_configs.validation.yaml_nodes import SourceLocation

# name[extras]==version of one of the two packages whose versions must be the client's.
_PINNED = re.compile(r"(?<![\w.-])(ray|rayscribe)(?:\[[^\]]*\])?==([^;,\s\"']+)", re.IGNORECASE)
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")
_FLOATING = frozenset({"latest", "nightly", "main", "master", "dev", "edge", "stable"})
ALL = CLUSTERS | BATCH


def _versions(file: ClusterFile, installed: Installed) -> Iterator[tuple[SourceLocation, str, str, str]]:
    """SourceLocation, text, package and version of everything that names a version of Ray or Rayscribe."""
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


def split_image(image: str) -> tuple[str, str]:
    """Name and tag of an image; no tag is ""."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "")


RULES = (
    Rule("same-version", "Ray and Rayscribe are the client's versions", ALL, _same_version),
    Rule("pinned-image", "images have a version", ALL, _pinned_images),
)
