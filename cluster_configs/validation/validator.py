"""Checks one file against all rules of its kind."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cluster_configs.providers.known_providers import provider_of
from cluster_configs.rendering.cluster_spec import ClusterSpec
from cluster_configs.rendering.render import RENDERERS, render
from cluster_configs.rendering.targets import Target
from cluster_configs.validation import access_rules, node_rules, schema_rules, secret_rules
from cluster_configs.validation.cluster_file import EVERY_KIND, SPEC, ClusterFile, FileKind, Rule, Violation
from cluster_configs.validation.file_reader import READING, UnreadableError, read_cluster_file
from cluster_configs.validation.yaml_nodes import SourceLocation
from trainers.config.validation import validated
from trainers.errors import ConfigError

# The part of a spec that each target needs.
PARTS = {Target.RAY_UP: "ray_up", Target.KUBERAY: "kubernetes", Target.SLURM: "slurm", Target.SGE: "sge"}


def _rendered(file: ClusterFile) -> Iterator[tuple[str, str]]:
    """Yields name and file of each target that the spec has a part for; yields nothing for an invalid spec."""
    spec, _ = validated(ClusterSpec, file.document.value)
    for target, kind in RENDERERS:
        if spec is not None and getattr(spec, PARTS[target]) is not None:
            yield f"{target} {kind or ''}".strip(), render(spec, target, kind)


def _spec_fields(file: ClusterFile) -> Iterator[Violation]:
    _, problems = validated(ClusterSpec, file.document.value)
    yield from (_violation(file, problem) for problem in problems)


def _renders(file: ClusterFile) -> Iterator[Violation]:
    try:
        [*_rendered(file)]
    except ConfigError as error:
        yield _violation(file, str(error))


def _violation(file: ClusterFile, problem: str) -> Violation:
    """Converts a problem, whose text begins with the field."""
    field, _, fix = problem.partition(": ")
    return Violation(file.document.get(*field.split(".")).place, "", fix or problem)


RULES: tuple[Rule, ...] = (
    # These rules are checked while the file is read.
    *(Rule(name, EVERY_KIND, lambda file: ()) for name in READING),
    Rule("spec-fields", SPEC, _spec_fields),
    Rule("renders", SPEC, _renders),
    *schema_rules.RULES,
    *access_rules.RULES,
    *secret_rules.RULES,
    *node_rules.RULES,
)


@dataclass(frozen=True)
class Report:
    """The kind of a file, the names of its rules, and violations."""

    kind: FileKind | None
    checked: tuple[str, ...]
    broken: tuple[tuple[str, Violation], ...]


def validate(content: bytes) -> Report:
    """Checks a file; never raises, whatever the content."""
    try:
        file = read_cluster_file(content)
    except UnreadableError as error:
        return Report(None, READING, ((error.rule, error.violation),))
    provider = provider_of(file.document.get("provider"))
    rules = [rule for rule in (*RULES, *(provider.rules if provider else ())) if file.kind in rule.kinds]
    broken = [(rule.name, violation) for rule in rules for violation in rule.check(file)]
    checked = [*dict.fromkeys(rule.name for rule in rules)]
    if file.kind == FileKind.SPEC and not broken:
        for target, text in _rendered(file):
            report = validate(text.encode())
            checked += [name for name in report.checked if name not in checked]
            for name, violation in report.broken:
                place = SourceLocation(f"rendered for {target}: {violation.place}")
                broken.append((name, replace(violation, place=place)))
    return Report(file.kind, tuple(checked), tuple(broken))
