"""run_preflight: every check that can be run, as findings."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from jobs.clusters.registry import Clusters
from jobs.preflight import cluster_checks, local_checks
from jobs.preflight.case import Case
from jobs.preflight.finding import Access, Check, Finding, Note
from jobs.preflight.inspection_process import Inspection
from jobs.preflight.probe import probe
from jobs.submission.job_spec import JobSpec
from trainers.errors import RayscribeError

CHECKS: tuple[Check, ...] = (*local_checks.CHECKS, *cluster_checks.CHECKS)
# Those of the cluster that mean something without a recipe.
WITHOUT_SPEC = ("cluster", "open_dashboard", "versions")


def run_preflight(
    spec: JobSpec | None, *, root: Path | None, clusters: Clusters | None, address: str | None, deep: bool
) -> list[Finding]:
    """Looks for faults before a job runs.

    Args:
        spec: The recipe. None: only the cluster is looked at.
        root: The repository that goes along; needed with a recipe.
        clusters: Asks clusters. None: the cluster is not ours to ask.
        address: URL of the cluster's dashboard. None: not known.
        deep: Take the time that it takes, and look from the nodes too; otherwise some 20 seconds at most.

    Returns:
        What was found, in the order of looking. Nothing is raised for what a check finds or for one that breaks.
    """
    case = Case(spec, root, address, clusters, deep=deep)
    if spec is None:
        return [finding for check in CHECKS if check.name in WITHOUT_SPEC for finding in run_check(check, case)]
    with closing(Inspection(case)) as inspection:
        findings = [finding for check in CHECKS for finding in run_check(check, case)]
        findings += inspection.findings()
    if deep and case.target is not None:
        findings += probe(case)
    return findings


def run_check(check: Check, case: Case) -> Iterator[Finding]:
    """What one check says; one that breaks says so itself."""
    if check.access == Access.CLUSTER and case.target is None:
        yield Finding(check=check.name, level="skipped", text="no cluster is known; give --address http://<head>:8265")
        return
    began = time.monotonic()
    for note in _notes(check, case):
        yield Finding(check=check.name, level=note.level, text=note.text, seconds=round(time.monotonic() - began, 3))
        began = time.monotonic()


def _notes(check: Check, case: Case) -> list[Note]:
    notes: list[Note] = []
    try:
        for note in check.run(case):
            notes.append(note)
    except RayscribeError as error:
        notes.append(Note("fault", str(error)))
    except Exception as error:
        # A slip in a check must not keep a good run from starting.
        text = f"the check itself failed ({type(error).__name__}: {error}); look at this by hand"
        notes.append(Note("warning", text))
    return notes
