"""A ClusterSpec: its fields. What is rendered from it is checked as any other file."""

from collections.abc import Iterator

from cluster_configs.rendering.cluster_spec import ClusterSpec
from cluster_configs.validation.cluster_file import ClusterFile, FileKind, Installed, Rule, Violation
from trainers.config.validation import validated


def _spec_fields(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    _, problems = validated(ClusterSpec, file.document.value)
    for problem in problems:
        field, _, fix = problem.partition(": ")
        yield Violation(file.document.get(*field.split(".")).place, "", fix or problem)


RULES = (Rule("spec-fields", "the fields are those of a ClusterSpec", frozenset({FileKind.SPEC}), _spec_fields),)
