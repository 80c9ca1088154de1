"""Checks one file against all rules of its kind."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cluster_configs.providers.known_providers import provider_of
from cluster_configs.validation import schema_rules
from cluster_configs.validation.cluster_file import EVERY_KIND, ClusterFile, FileKind, Installed, Rule, Violation
from cluster_configs.validation.file_reader import READING, UnreadableError, read_cluster_file
from cluster_configs.validation.rules import (
    access_rules,
    batch_rules,
    kubernetes_rules,
    resource_rules,
    secret_rules,
    spec_rules,
    storage_rules,
    version_rules,
)
from cluster_configs.validation.yaml_nodes import Place

FAMILIES = (
    schema_rules, spec_rules, access_rules, secret_rules, version_rules, resource_rules, storage_rules,
    kubernetes_rules, batch_rules,
)  # fmt: skip


def _nothing_more(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    """A file that could be read keeps the rules of reading."""
    return iter(())


RULES: tuple[Rule, ...] = (
    *(Rule(name, holds, EVERY_KIND, _nothing_more) for name, holds in READING.items()),
    *(rule for family in FAMILIES for rule in family.RULES),
)


@dataclass(frozen=True)
class Report:
    """What was found in a file."""

    kind: FileKind | None
    checked: tuple[str, ...]
    broken: tuple[tuple[str, Violation], ...]


def validate(content: bytes, installed: Installed) -> Report:
    """Checks a file; raises for nothing that a file may hold."""
    try:
        file = read_cluster_file(content)
    except UnreadableError as error:
        return Report(None, tuple(READING), ((error.rule, error.violation),))
    provider = provider_of(file.document.get("provider"))
    rules = [rule for rule in (*RULES, *(provider.rules if provider else ())) if file.kind in rule.kinds]
    broken = [(rule.name, violation) for rule in rules for violation in rule.check(file, installed)]
    checked = [*dict.fromkeys(rule.name for rule in rules)]
    if file.kind == FileKind.SPEC and not broken:
        for target, text in spec_rules.rendered(file):
            report = validate(text.encode(), installed)
            checked += [name for name in report.checked if name not in checked]
            for name, violation in report.broken:
                place = Place(f"rendered for {target}: {violation.place}")
                broken.append((name, replace(violation, place=place)))
    return Report(file.kind, tuple(checked), tuple(broken))
