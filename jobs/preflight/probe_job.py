"""A small Ray job that checks on the nodes: storage, data, model, hardware, versions, secrets."""

import shlex
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

from jobs.clusters.cluster import JobInfo
from jobs.errors import JobsError
from jobs.model import Gang
from jobs.preflight.context import Context
from jobs.preflight.inspection_process import check_arguments, parse_findings, unreported
from jobs.submission.assemble import pack_bundle, run_request_of
from jobs.submission.ray_request import METADATA_UID, SubmitRequest, build_request, entry_words
from jobs.submission.run_request import run_of
from runtime_env.build import wrap_entrypoint
from runtime_env.own_code import own_code
from runtime_env.package import pack
from trainers.errors import RayscribeError
from trainers.findings import Finding, Level

NAME = "probe"
GROUPS = ("model", "nodes")
# Includes installing the packages, as for the run.
TIMEOUT_S = 900.0
POLL_S = 0.5
MAX_LINES = 5
MAX_LOG_BYTES = 1_000_000


def probe(context: Context) -> list[Finding]:
    """Submits the probe and waits for its findings; it reserves nothing, so it runs on a busy cluster too."""
    if not context.cluster_accepts_us:
        return [Finding(check=NAME, level=Level.SKIPPED, text="the cluster does not respond to us")]
    began = time.monotonic()

    def of_probe(level: Level, text: str) -> Finding:
        return Finding(check=NAME, level=level, text=text, seconds=round(time.monotonic() - began, 3))

    try:
        with tempfile.TemporaryDirectory(prefix="rayscribe-") as folder:
            request = build_probe(context, Path(folder))
            job_info, lines = _run(context, request)
    except RayscribeError as error:
        return [of_probe(Level.ERROR, str(error))]
    missing = list(unreported(lines, GROUPS, "the probe ended before this check"))
    if missing:
        status = job_info.status or "unknown"
        outcome = of_probe(Level.ERROR, f"{request.submission_id} ended as {status}: {_last_output(job_info, lines)}")
    else:
        outcome = of_probe(Level.OK, f"{request.submission_id} ran on the cluster, with the run's own packages")
    return [*map(_from_node, parse_findings(lines)), outcome, *map(_from_node, missing)]


def build_probe(context: Context, folder: Path) -> SubmitRequest:
    """The request to Ray: the run's own first attempt, with checks instead of training; packages are in the folder."""
    assert context.spec is not None and context.address is not None
    package = pack_bundle(context.bundle, folder)
    code = None if context.spec.has_entry else pack(own_code(), folder, needed=None)
    address, uid = context.address, uuid.uuid4().hex
    run_request = run_request_of(context.spec, context.bundle, package.sha256)
    run = run_of(run_request, uid=uid, user=NAME, address_of=lambda _: address, now_s=0.0)
    command = [*entry_words(own_code=code is not None), *check_arguments(GROUPS)]
    return replace(
        build_request(
            run, 1, package=str(package.path), resume="nothing is trained", code=str(code.path) if code else None
        ),
        submission_id=f"rayscribe-preflight-{run.id}-{uid[:8]}",
        entrypoint=wrap_entrypoint(context.bundle.runtime_env, shlex.join(command)),
        gang=Gang(num_workers=0, resources_per_worker={}),
    )


def _run(context: Context, request: SubmitRequest) -> tuple[JobInfo, list[str]]:
    """Runs the probe to its end; gives its job info and the lines of its log."""
    clusters, end = context.clusters, time.monotonic() + TIMEOUT_S
    assert clusters is not None
    uid = request.metadata[METADATA_UID]
    clusters.submit(request)
    try:
        while True:
            clusters.begin_round()
            job_info = clusters.job_info(request.address, request.submission_id, uid)
            if job_info.ended:
                break
            if time.monotonic() > end:
                raise JobsError(
                    f"{request.submission_id} has not ended in {TIMEOUT_S:.0f} s: check its log in {request.address}"
                )
            time.sleep(POLL_S)
    except BaseException:
        # Nothing else stops it.
        clusters.stop(request.address, request.submission_id)
        raise
    text = clusters.log(request.address, request.submission_id, 0, MAX_LOG_BYTES) if job_info.known else b""
    return job_info, text.decode(errors="replace").split("\n")


def _from_node(finding: Finding) -> Finding:
    """The same check was made here too, under the name without `node_`."""
    name = finding.check if finding.check.startswith("node") else f"node_{finding.check}"
    return finding.model_copy(update={"check": name})


def _last_output(job_info: JobInfo, lines: list[str]) -> str:
    errors = [line for line in lines if line.startswith("error: ")]
    printed = [line.strip() for line in lines or job_info.message.splitlines() if line.strip()]
    if errors:
        return errors[-1]
    return " | ".join(printed[-MAX_LINES:]) or "it printed nothing; check the cluster's job logs"
