"""A small Ray job that looks from the nodes: storage, data, model, hardware, versions, secrets."""

import shlex
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

from jobs.clusters.job_info import JobInfo
from jobs.errors import JobsError
from jobs.model import Gang
from jobs.preflight.case import Case
from jobs.preflight.finding import Finding
from jobs.preflight.inspection_process import missing, parse, words_of
from jobs.submission.assemble import pack_bundle, run_request_of
from jobs.submission.ray_request import METADATA_UID, SubmitRequest, build_request
from jobs.submission.run_request import run_of
from runtime_env.install_script import wrap_entrypoint
from runtime_env.package import Package
from trainers.errors import RayscribeError

NAME = "probe"
GROUPS = ("model", "nodes")
# Packages are installed within it, as they would be for the run.
DEADLINE_S = 900.0
POLL_S = 0.5
MOST_LINES = 5


def probe(case: Case) -> list[Finding]:
    """Submits the probe and waits for what it finds; it reserves nothing, so it runs on a busy cluster too."""
    if not case.answers:
        return [Finding(check=NAME, level="skipped", text="the cluster does not answer us")]
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="rayscribe-") as folder:
            request = build_probe(case, pack_bundle(case.bundle, Path(folder)))
            job_info, lines = _run(case, request)
    except RayscribeError as error:
        return [Finding(check=NAME, level="fault", text=str(error), seconds=round(time.monotonic() - began, 3))]
    seconds = round(time.monotonic() - began, 3)
    found = [_from_node(finding) for finding in parse(lines)]
    reason = f"{request.submission_id} ended as {job_info.status or 'unknown'}: {_last_words(job_info, lines)}"
    silent = missing(lines, GROUPS, "the probe did not come so far")
    if silent:
        found.append(Finding(check=NAME, level="fault", text=reason, seconds=seconds))
    else:
        text = f"{request.submission_id} ran on the cluster, with the run's own packages"
        found.append(Finding(check=NAME, level="ok", text=text, seconds=seconds))
    return [*found, *map(_from_node, silent)]


def build_probe(case: Case, package: Package) -> SubmitRequest:
    """What Ray is asked for: the run's own first attempt, with checks in the place of training.

    Args:
        case: The run.
        package: Its working directory.
    """
    assert case.spec is not None and case.target is not None
    address, uid = case.target.address, uuid.uuid4().hex
    run_request = run_request_of(case.spec, case.bundle, package.sha256)
    run = run_of(run_request, uid=uid, user=NAME, address_of=lambda _: address, now_s=0.0)
    words = ["python", "task.py", *words_of(GROUPS, run.spec_path, run.overrides)]
    return replace(
        build_request(run, 1, package=str(package.path), resume="nothing is trained"),
        submission_id=f"rayscribe-preflight-{run.id}-{uid[:8]}",
        entrypoint=wrap_entrypoint(case.bundle.runtime_env, shlex.join(words)),
        gang=Gang(num_workers=0, resources_per_worker={}),
    )


def _run(case: Case, request: SubmitRequest) -> tuple[JobInfo, list[str]]:
    assert case.target is not None
    clusters, end = case.target.clusters, time.monotonic() + DEADLINE_S
    uid = request.metadata[METADATA_UID]
    clusters.submit(request)
    try:
        while True:
            clusters.begin_round()
            job_info = clusters.job_info(request.address, request.submission_id, uid)
            if job_info.over:
                break
            if time.monotonic() > end:
                raise JobsError(
                    f"{request.submission_id} has not ended in {DEADLINE_S:.0f} s: look at it in {request.address}"
                )
            time.sleep(POLL_S)
    except BaseException:
        # Nobody else looks after it.
        clusters.stop(request.address, request.submission_id)
        raise
    text = clusters.log(request.address, request.submission_id) if job_info.known else b""
    return job_info, text.decode(errors="replace").splitlines()


def _from_node(finding: Finding) -> Finding:
    """The same check was made here too, by the name without `node_`."""
    name = finding.check if finding.check.startswith("node") else f"node_{finding.check}"
    return finding.model_copy(update={"check": name})


def _last_words(job_info: JobInfo, lines: list[str]) -> str:
    errors = [line for line in lines if line.startswith("error: ")]
    said = [line.strip() for line in lines or job_info.message.splitlines() if line.strip()]
    if errors:
        return errors[-1]
    return " | ".join(said[-MOST_LINES:]) or "it said nothing; look into the cluster's job logs"
