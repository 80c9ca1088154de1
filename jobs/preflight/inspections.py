"""Checks of data, model and machine: `task.py --verb check` in a process that imports torch, and in a small Ray job.

Both print findings as lines of JSON, see `trainers/inspection/check_command.py`; other output is ignored.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from jobs.clusters.cluster import JobInfo
from jobs.errors import JobsError
from jobs.model import Gang
from jobs.preflight.context import RESPONSE, Context
from jobs.submission.assemble import pack_bundle, run_request_of
from jobs.submission.job_spec import JobSpec
from jobs.submission.ray_request import METADATA_UID, SubmitRequest, build_request, entry_words
from jobs.submission.run_request import run_of
from runtime_env.build import wrap_entrypoint
from runtime_env.own_code import own_code
from runtime_env.package import pack
from trainers.config.locations import path_values, variables_in
from trainers.config.submitted import CONFIG_VARIABLE, config_text
from trainers.errors import RayscribeError
from trainers.findings import Finding, Level

GROUPS = ("storage", "data", "model", "hardware")
# Longest wait of `rayscribe submit`; checks that are not done by then are reported as skipped.
QUICK_TIMEOUT_S = 20.0
DEEP_TIMEOUT_S = 1800.0
QUICK_RECORDINGS_S = 2.0
DEEP_RECORDINGS_S = 120.0
NAME = "probe"
PROBED_GROUPS = ("model", "nodes")
# Includes installing the packages, as for the run.
PROBE_TIMEOUT_S = 900.0
POLL_S = 0.5
MAX_LINES = 5
MAX_LOG_BYTES = 1_000_000


@contextlib.contextmanager
def inspecting(context: Context) -> Iterator[Callable[[], list[Finding]]]:
    """Runs checks in a process during the block; yields a function that waits for the findings.

    No process is started if the recipe refers to variables that only nodes have.
    """
    assert context.spec is not None
    if unknown := _unknown_variables(context.spec):
        reason = f"the recipe names {', '.join(unknown)}, which only the nodes know"
        yield lambda: list(unreported([], GROUPS, reason))
        return
    config = config_text(context.spec.config.model_dump(mode="json"))
    timeout_s = DEEP_TIMEOUT_S if context.deep else QUICK_TIMEOUT_S
    end = time.monotonic() + timeout_s
    with subprocess.Popen(
        command_of(context),
        cwd=context.spec.root,
        env={**os.environ, **context.spec.job.runtime_env.env_vars, CONFIG_VARIABLE: config},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:

        def findings() -> list[Finding]:
            try:
                output, errors = process.communicate(timeout=max(0.0, end - time.monotonic()))
                printed = errors.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
                reason = f"`task.py --verb check` ended with exit code {process.returncode}: {printed[-1]}"
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
                reason = f"not done within {timeout_s:.0f} s; `rayscribe preflight` waits longer"
            lines = output.decode(errors="replace").split("\n")
            return [*parse_findings(lines), *unreported(lines, GROUPS, reason)]

        try:
            yield findings
        finally:
            process.kill()


def command_of(context: Context) -> list[str]:
    """Returns the command line of the process."""
    assert context.spec is not None
    entry = entry_words(own_code=not context.spec.has_entry)[1:]
    seconds = DEEP_RECORDINGS_S if context.deep else QUICK_RECORDINGS_S
    command = [sys.executable, *entry, *check_arguments(GROUPS), "--light", "--recordings-s", f"{seconds:g}"]
    return [*command, "--elsewhere"] if context.elsewhere else command


def check_arguments(groups: Sequence[str]) -> list[str]:
    """Returns the arguments of task.py for checks; task.py reads the config from its environment."""
    return ["--verb", "check", "--only", ",".join(groups)]


def parse_findings(lines: Iterable[str]) -> list[Finding]:
    """Returns the findings among printed lines."""
    findings = []
    for content in _objects(lines):
        with contextlib.suppress(ValidationError):
            findings += [Finding.model_validate(content)] if "check" in content else []
    return findings


def unreported(lines: Iterable[str], groups: Sequence[str], reason: str) -> Iterator[Finding]:
    """Yields a skipped finding for each check of the groups, or for a group, that has no finding in the lines."""
    contents = list(_objects(lines))
    reported = {str(content["check"]) for content in contents if "check" in content}
    checks_of = {str(content["group"]): content.get("checks", []) for content in contents if "group" in content}
    for group in groups:
        for check in map(str, checks_of.get(group, [group])):
            if check not in reported:
                yield Finding(check=check, level=Level.SKIPPED, text=reason)


def _objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with contextlib.suppress(ValueError):
            # A line that begins with { is an object or not JSON.
            if line.startswith("{"):
                yield json.loads(line)


def _unknown_variables(spec: JobSpec) -> list[str]:
    known = {*os.environ, *spec.job.runtime_env.env_vars}
    values = [value for _, _, value in path_values(spec.config.model_dump())]
    return sorted({name for value in values for name in variables_in(value)} - known)


def probe(context: Context) -> list[Finding]:
    """Submits a small job and waits for its findings; the job reserves nothing, so it also runs on a busy cluster."""
    if (lacking := RESPONSE.lacking(context)) is not None:
        return [Finding(check=NAME, level=Level.SKIPPED, text=lacking)]
    began = time.monotonic()

    def of_probe(level: Level, text: str) -> Finding:
        return Finding(check=NAME, level=level, text=text, seconds=round(time.monotonic() - began, 3))

    try:
        with tempfile.TemporaryDirectory(prefix="rayscribe-") as folder:
            request = build_probe(context, Path(folder))
            job_info, lines = _run(context, request)
    except RayscribeError as error:
        return [of_probe(Level.ERROR, str(error))]
    missing = list(unreported(lines, PROBED_GROUPS, "the probe ended before this check"))
    outcome = of_probe(Level.OK, f"{request.submission_id} ran on the cluster, with the run's own packages")
    if missing:
        status = job_info.status or "unknown"
        outcome = of_probe(Level.ERROR, f"{request.submission_id} ended as {status}: {_last_output(job_info, lines)}")
    return [*map(_from_node, parse_findings(lines)), outcome, *map(_from_node, missing)]


def build_probe(context: Context, folder: Path) -> SubmitRequest:
    """Builds the request to Ray: the run's first attempt, with checks instead of training. Packages go to `folder`."""
    assert context.spec is not None and context.address is not None
    package = pack_bundle(context.bundle, folder)
    code = None if context.spec.has_entry else pack(own_code(), folder, needed=None)
    address, uid = context.address, uuid.uuid4().hex
    run_request = run_request_of(context.spec, context.bundle, package.sha256)
    run = run_of(run_request, uid=uid, user=NAME, address_of=lambda _: address, now_s=0.0)
    command = [*entry_words(own_code=code is not None), *check_arguments(PROBED_GROUPS)]
    return replace(
        build_request(
            run, 1, package=str(package.path), resume="nothing is trained", code=str(code.path) if code else None
        ),
        submission_id=f"rayscribe-preflight-{run.id}-{uid[:8]}",
        entrypoint=wrap_entrypoint(context.bundle.runtime_env, shlex.join(command)),
        gang=Gang(num_workers=0, resources_per_worker={}),
    )


def _run(context: Context, request: SubmitRequest) -> tuple[JobInfo, list[str]]:
    clusters, end = context.clusters, time.monotonic() + PROBE_TIMEOUT_S
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
                    f"{request.submission_id} has not ended in {PROBE_TIMEOUT_S:.0f} s: "
                    f"check its log in {request.address}"
                )
            time.sleep(POLL_S)
    except BaseException:
        # Nothing else stops the probe.
        clusters.stop(request.address, request.submission_id)
        raise
    text = clusters.log(request.address, request.submission_id, 0, MAX_LOG_BYTES) if job_info.known else b""
    return job_info, text.decode(errors="replace").split("\n")


def _from_node(finding: Finding) -> Finding:
    """Renames a check to `node_…`, since the same check was made on the client under the plain name."""
    name = finding.check if finding.check.startswith("node") else f"node_{finding.check}"
    return finding.model_copy(update={"check": name})


def _last_output(job_info: JobInfo, lines: list[str]) -> str:
    errors = [line for line in lines if line.startswith("error: ")]
    printed = [line.strip() for line in lines or job_info.message.splitlines() if line.strip()]
    return " | ".join(errors[-1:] or printed[-MAX_LINES:]) or "it printed nothing; check the cluster's job logs"
