"""Runs every possible check, and formats the findings as lines."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainers.config.wording import counted
from trainers.findings import Check, Finding, Level, run_check

if TYPE_CHECKING:
    from jobs.clusters.registry import Clusters
    from jobs.preflight.context import Context
    from jobs.submission.assemble import Bundle
    from jobs.submission.job_spec import JobSpec

SIGNS = {Level.OK: "✓", Level.WARNING: "!", Level.ERROR: "✗", Level.SKIPPED: "-"}


def run_preflight(
    spec: "JobSpec | None",
    *,
    clusters: "Clusters | None",
    address: str | None,
    deep: bool,
    bundle: "Bundle | None" = None,
) -> list[Finding]:
    """Runs the checks before a job; see Context. If a check finds an error or fails, that is a finding, not raised."""
    # Imported here, since a command that only shows findings does not need them.
    from jobs.preflight.client_checks import OF_CLUSTER, OF_PACKAGE, OF_PROGRAMS  # noqa: PLC0415
    from jobs.preflight.context import RECIPE, Context  # noqa: PLC0415
    from jobs.preflight.inspections import inspecting, probe  # noqa: PLC0415

    context = Context(spec, address, clusters, deep=deep, bundle=bundle)
    if spec is None:
        return _made([check for check in OF_CLUSTER if RECIPE not in check.needs], context)
    if spec.is_script:
        # Only the program knows its data and model.
        return _made([*OF_PACKAGE, *OF_CLUSTER, *OF_PROGRAMS], context)
    with inspecting(context) as inspected:
        # The other checks run meanwhile.
        findings = [*_made([*OF_PACKAGE, *OF_CLUSTER], context), *inspected()]
    if deep and context.address is not None:
        findings += probe(context)
    return findings


def _made(checks: "Sequence[Check[Context]]", context: "Context") -> list[Finding]:
    return [finding for check in checks for finding in run_check(check, context)]


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yields a line per finding, a line for all checks that were skipped for the same reason, and a summary."""
    skipped: dict[str, list[str]] = {}
    for finding in findings:
        if finding.level == Level.SKIPPED:
            skipped.setdefault(finding.text, []).append(finding.check)
        else:
            yield line(finding)
    yield from (
        f"{SIGNS[Level.SKIPPED]} {', '.join(dict.fromkeys(checks))}: {text}" for text, checks in skipped.items()
    )
    count = Counter(finding.level for finding in findings)
    parts = [
        f"{count[Level.OK]} passed",
        counted(count[Level.WARNING], "warning"),
        counted(count[Level.ERROR], "error"),
    ]
    yield f"preflight: {' · '.join([*parts, f'{count[Level.SKIPPED]} skipped'])}"


def line(finding: Finding) -> str:
    """Returns the finding's sign, the name of its check, and its text."""
    return f"{SIGNS[finding.level]} {finding.check}: {finding.text}"
