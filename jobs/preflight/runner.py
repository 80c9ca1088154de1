"""run_preflight: every check that can be run, as findings."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from jobs.preflight import cluster_checks, local_checks
from jobs.preflight.context import Context
from jobs.preflight.inspection_process import InspectionProcess
from jobs.preflight.probe_job import probe
from jobs.submission.job_spec import JobSpec
from trainers.findings import Check, Finding, Level, run_check

if TYPE_CHECKING:
    from jobs.clusters.registry import Clusters
    from jobs.submission.assemble import Bundle

PACKAGED, MANIFESTS = "packaged_data", "manifests"


def run_preflight(
    spec: JobSpec | None,
    *,
    clusters: "Clusters | None",
    address: str | None,
    deep: bool,
    bundle: "Bundle | None" = None,
) -> list[Finding]:
    """Looks for errors before a job runs; see Context. A check that finds one, or that fails itself, raises nothing."""
    context = Context(spec, address, clusters, deep=deep, bundle=bundle)
    if spec is None:
        return list(run_cluster_checks(cluster_checks.WITHOUT_RECIPE, context))
    if spec.is_script:
        # Of data and model only the program knows.
        of_programs = [each for check in local_checks.OF_PROGRAMS for each in run_check(check, context)]
        return [*_without_inspection(context), *of_programs]
    with closing(InspectionProcess(context)) as inspection:
        findings = _without_repeats([*_without_inspection(context), *inspection.findings()])
    if deep and context.address is not None:
        findings += probe(context)
    return findings


def _without_inspection(context: Context) -> list[Finding]:
    findings = [finding for check in local_checks.CHECKS for finding in run_check(check, context)]
    return [*findings, *run_cluster_checks(cluster_checks.CHECKS, context)]


def _without_repeats(findings: Sequence[Finding]) -> list[Finding]:
    """A manifest that is missing is named once: where what is packaged is checked, not again where it is read."""
    missing = {_field(each) for each in findings if each.check == PACKAGED and each.level == Level.ERROR}
    return [each for each in findings if not (each.check == MANIFESTS and _field(each) in missing)]


def _field(finding: Finding) -> str:
    return finding.text.partition(": ")[0]


def run_cluster_checks(checks: Sequence[Check[Context]], context: Context) -> Iterator[Finding]:
    """Runs checks that need a cluster; without one, each is skipped."""
    for check in checks:
        if context.address is None:
            text = "no cluster is known; give --address http://<head>:8265, or start one: rayscribe cluster up --local"
            yield Finding(check=check.name, level=Level.SKIPPED, text=text)
        else:
            yield from run_check(check, context)
