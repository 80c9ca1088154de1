"""Rules for pods and jobs of KubeRay that misbehave although their fields are valid."""

import re
from collections.abc import Iterator

from cluster_configs.rendering.commented_yaml import is_other_type
from cluster_configs.validation.cluster_file import KUBERNETES, ClusterFile, Installed, Rule, Violation
from cluster_configs.validation.kubernetes_file import containers_of, groups_in
from cluster_configs.validation.yaml_nodes import parse_yaml, unquoted_texts
from trainers.config.strict_loading import YamlError

_QUANTITIES = re.compile(r"(^|\.)(limits|requests|capacity|sizeLimit)(\.|$)")


def _container_resources(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    for group in groups_in(file.documents):
        container = next(containers_of(group.get("template", "spec")), None)
        if container is None:
            continue
        resources = container.get("resources")
        for keys in (("limits", "cpu"), ("limits", "memory")):
            if not resources.get(*keys).text:
                fix = f"add resources.{'.'.join(keys)}: Ray takes what it tells jobs from there"
                yield Violation(resources.get(*keys).place, "", fix)


def _ray_start_blocks(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    fix = "add --block: the container ends with its first process, and with it the node"
    for place, start in file.ray_starts():
        if "--block" not in start.options and not start.symmetric:
            yield Violation(place, "ray start without --block", fix)
    for group in groups_in(file.documents):
        block = group.get("rayStartParams", "block")
        if block.text == "false":
            yield Violation(block.place, "false", "take it out: KubeRay starts Ray with --block")


def _job_frees_nodes(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    for document in file.of_kind("RayJob"):
        ends = document.get("spec", "shutdownAfterJobFinishes")
        if ends.value is not True and not document.get("spec", "clusterSelector").present:
            yield Violation(ends.place, ends.text, "set it to true: the job's GPUs stay taken after its end")


def _runtime_env(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    for document in file.of_kind("RayJob"):
        node = document.get("spec", "runtimeEnvYAML")
        try:
            if node.present and not all(part.children for part in parse_yaml(node.text)):
                yield Violation(node.place, node.text[:60], "give a mapping, e.g. env_vars: {NAME: value}")
        except YamlError as error:
            yield Violation(node.place, error.reason, "fix the YAML inside the text")


def _strings_quoted(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    fix = "put it in quotes: Kubernetes reads a number or a truth value, and refuses it where a text belongs"
    for place, text in unquoted_texts(file.text):
        # A quantity may be a number.
        if is_other_type(text) and not _QUANTITIES.search(place.path):
            yield Violation(place, text, fix)


RULES = (
    Rule("container-resources", "Ray's containers have limits", KUBERNETES, _container_resources),
    Rule("ray-start-blocks", "Ray is the container's own process", KUBERNETES, _ray_start_blocks),
    Rule("job-frees-nodes", "a job's cluster ends with it", KUBERNETES, _job_frees_nodes),
    Rule("strings-quoted", "texts that look like numbers are quoted", KUBERNETES, _strings_quoted),
    Rule("job-runtime-env", "the job's runtime environment is YAML", KUBERNETES, _runtime_env),
)
