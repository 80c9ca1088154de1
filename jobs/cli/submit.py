"""rayscribe submit, resume, preflight: checks a recipe and queues it as a run."""

import math
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from jobs.addresses import cluster_address, is_loopback_url
from jobs.cli.completion import cluster_option, complete_recipe, run_argument
from jobs.cli.connect import SERVICE_VARIABLE, CommandSession, JsonOption, ServiceOption, open_session
from jobs.cli.follow import Follower, StatusPrinter, exit_code_of, print_line, print_text
from jobs.cli.output import as_json, echo, next_steps, state_line
from jobs.cli.train import Overrides, Spec, continue_run
from jobs.clusters.managed.cluster_endpoint import connect
from jobs.clusters.managed.cluster_record import default_address, is_local_address, read_record
from jobs.errors import ClusterError, ClusterGoneError, ConflictError, NotFoundError, PreflightError
from jobs.model import Run, name_is_taken
from jobs.paths import current_user
from jobs.preflight import runner
from jobs.preflight.runner import SIGNS
from jobs.submission.job_spec import NO_CLUSTER, JobSpec, load_spec
from jobs.submission.ray_request import build_request
from jobs.submission.run_request import branch, branched, run_of
from trainers.config.storage_location import is_absolute
from trainers.config.wording import counted
from trainers.distributed.console import screen
from trainers.distributed.console.events import Stage, StageEnded
from trainers.distributed.machine import make_private_folder
from trainers.errors import ConfigError
from trainers.findings import Level

if TYPE_CHECKING:
    from jobs.submission.assemble import Bundle
    from trainers.findings import Finding

# After this time, a hint is printed; a cluster that responds accepts a job faster. Seconds.
HINT_S = 5.0

AddressOption = Annotated[
    str | None,
    typer.Option(
        help="URL of the cluster's dashboard, e.g. http://127.0.0.1:8265. Default: the service's first cluster."
    ),
]
ClusterOption = Annotated[
    str | None,
    cluster_option(
        "A cluster of `rayscribe cluster up`, by its name. Default: the only one, if no address is given.",
        "RAYSCRIBE_CLUSTER",
    ),
]
FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Show states and logs until the run has ended; exit with its exit code.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the complete request without sending it.")]
NoPreflightOption = Annotated[bool, typer.Option("--no-preflight", help="Skip the checks of a submission.")]
UNNAMED_ADDRESS = "<the service's default>"


def submit(  # noqa: PLR0913, PLR0917 -- one parameter per option
    spec: Spec,
    overrides: Overrides = [],  # noqa: B006
    priority: Annotated[
        int | None, typer.Option(help="Priority in the queue, largest first; short for --set job.priority=….")
    ] = None,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    follow: FollowOption = False,
    dry_run: DryRunOption = False,
    skip_preflight: NoPreflightOption = False,
    service: ServiceOption = None,
    json_output: JsonOption = False,
) -> None:
    """Check a recipe, package its code, and queue it as a run.

    Without a service, runs are started and retried only while a command runs. This command runs until Ray has accepted
    the first attempt, which then needs no command; with --follow it runs until the run has ended.

    Example: rayscribe submit jobs/specs/whisper_digits.yaml --set training.max_steps=200 --priority 10 --follow
    """
    address = named_address(address, cluster, service)
    how = Submission(service, follow, dry_run, skip_preflight, json_output)
    submit_spec(_load(spec, overrides, address, how.is_local, priority=priority), how)


@dataclass(frozen=True)
class Submission:
    """The options of a submission.

    `goes_on` is True if the run continues after an interrupt of the command.
    """

    service: str | None = None
    follow: bool = False
    dry_run: bool = False
    skip_preflight: bool = False
    json_output: bool = False
    goes_on: bool = True

    def is_local(self, named: str | None) -> bool:
        """Returns True if a cluster is on this machine."""
        # A dry run sends no request, so the service's default cluster is unknown.
        return _is_local(named, self.service, ask=not self.dry_run)


def submit_spec(found: JobSpec, how: Submission) -> None:
    """Packages, checks and queues a run, and reports on it."""
    # Imported here, since packaging uses Ray's own exclusion rules, and other commands do not need to import Ray.
    from jobs.submission.assemble import collect_bundle  # noqa: PLC0415

    screen.show(Stage("package", "collecting files"))
    bundle = collect_bundle(found)
    if bundle.shipment is not None and (how.dry_run or how.skip_preflight):
        for line in bundle.shipment.warnings:
            typer.echo(f"{SIGNS[Level.WARNING]} {line}", err=True)
    if how.dry_run:
        _dry_run(found, bundle, how.service, how.json_output)
        return
    refuse_taken_name(str(found.config.run.name), how.service)
    if not how.skip_preflight:
        screen.show(Stage("preflight", "checking the recipe"))
        _preflight(found, bundle, or_else=", or use --no-preflight")
    screen.show(Stage("submit", "packaging and submitting"))
    with open_session(how.service) as session:
        _report(session, queue_bundle(session, found, bundle), how)


def queue_bundle(session: CommandSession, found: JobSpec, bundle: "Bundle") -> Run:
    """Packages and queues a run."""
    from jobs.submission.assemble import pack_bundle, run_request_of  # noqa: PLC0415

    make_private_folder(session.packages)
    package = pack_bundle(bundle, session.packages)
    if not session.operations.has_package(package.sha256):
        session.operations.put_package(package.sha256, package.path)
    return session.operations.submit(run_request_of(found, bundle, package.sha256), idempotency_key=uuid.uuid4().hex)


def refuse_taken_name(name: str, service: str | None) -> None:
    """Raises ConflictError early if the queue has a run of this name; the queue checks again on submission."""
    with open_session(service) as session:
        try:
            taken = session.operations.run(name)
        except NotFoundError:
            return
    raise ConflictError(name_is_taken(name, taken.state))


def submit_from_python(
    recipe: Path, overrides: list[str], address: str | None, cluster: str | None, service: str | None
) -> Run:
    """Packages, checks and queues a run; without a service, waits until Ray has accepted its first attempt."""
    from jobs.submission.assemble import collect_bundle  # noqa: PLC0415

    service = service or os.environ.get(SERVICE_VARIABLE)
    how = Submission(service)
    found = _load(recipe, overrides, named_address(address, cluster, service), how.is_local)
    bundle = collect_bundle(found)
    refuse_taken_name(str(found.config.run.name), service)
    _preflight(found, bundle)
    with open_session(service) as session:
        run = queue_bundle(session, found, bundle)
        return _next_attempt(session, run) if session.standalone else run


def resume(
    run_id: Annotated[str, run_argument("A failed or stopped run, by its name, folder or URL.")],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="CHECKPOINT", help="Start a new run from this checkpoint: a name in RUN, or a folder."
        ),
    ] = None,
    follow: FollowOption = False,
    service: ServiceOption = None,
    json_output: JsonOption = False,
) -> None:
    """Continue a run from its last complete checkpoint.

    The run has failed or was stopped. With --from, start a new run from another checkpoint. A run that was started
    without a queue continues in this process, with the same config and cluster.

    Example: rayscribe resume whisper-sr --follow

    Example: rayscribe resume whisper-sr --from checkpoint-4000-a1-3f9c2e
    """
    with open_session(service) as session:
        source_run, found = session.runs.run(run_id), session.runs.find(run_id)
        if checkpoint is not None:
            _check_checkpoint(source_run, checkpoint)
        if isinstance(found, str):
            if checkpoint is None:
                run = session.operations.resume(found)
            else:
                run_request = branch(source_run, checkpoint, partial(_run_exists, session))
                run = session.operations.submit(run_request, idempotency_key=uuid.uuid4().hex)
            _report(session, run, Submission(service, follow, json_output=json_output))
            return
        config = None if checkpoint is None else branched(source_run, checkpoint, partial(_run_exists, session))
    if json_output:
        raise ConfigError(f"--json: {source_run.id} was started without a queue, and continues here: leave it out")
    raise typer.Exit(continue_run(source_run, found, config))


def preflight(
    spec: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SPEC]",
            help="Recipe. Without one, only this machine and the cluster are checked.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    address: AddressOption = None,
    cluster: ClusterOption = None,
    json_output: JsonOption = False,
) -> None:
    """Find errors before a job runs.

    Checks config, data, model, storage, package and cluster. Exits with code 26 if a check finds an error.

    Example: rayscribe preflight jobs/specs/whisper_digits.yaml --address http://127.0.0.1:8265
    """
    address = named_address(address, cluster, None)
    if spec is None:
        findings = _findings(None, address, deep=True)
    else:
        # Without an address, this machine is checked.
        found = _load(spec, overrides, address, partial(_is_local, service=None, ask=False))
        findings = _findings(found, found.job.address, deep=True)
    if json_output:
        as_json(findings)
    else:
        for text in runner.lines(findings):
            echo(text)
    _raise_on_errors(findings)


def _known_address(named: str | None, service: str | None) -> str | None:
    """Returns the cluster that a recipe names, or else this machine's default; None with a service and no name."""
    return named or (None if service else default_address())


def named_address(address: str | None, cluster: str | None, service: str | None) -> str | None:
    """Returns the address of the cluster that the options name; None without one. A service looks up names itself."""
    if address is not None and cluster is not None:
        raise ConfigError("--address and --cluster both name a cluster: keep one")
    if cluster is None:
        return address
    return cluster_address(cluster if service else read_record(cluster).name)


def _is_local(named: str | None, service: str | None, *, ask: bool) -> bool:
    """Returns True if the cluster is on this machine; False for a service that is not on this machine.

    If `ask` is False, an unnamed cluster is assumed to be local.
    """
    if service and not is_loopback_url(service):
        return False
    address = _known_address(named, service)
    if address is None and not ask:
        return True
    if address is None and service:
        with open_session(service) as session:
            address = next(iter(session.operations.clusters()), None)
    if address is None and not service:
        raise ConfigError(NO_CLUSTER)
    return address is not None and is_local_address(address)


def _load(
    spec: Path,
    overrides: list[str],
    address: str | None,
    is_local: Callable[[str | None], bool],
    *,
    priority: int | None = None,
) -> JobSpec:
    given = {"job.priority": priority, "job.address": address}
    chosen = [*overrides, *(f"{name}={value}" for name, value in given.items() if value is not None)]
    return load_spec(spec, chosen, now=datetime.now(UTC), is_local=is_local, say=partial(echo, err=True))


def _dry_run(spec: JobSpec, bundle: "Bundle", service: str | None, json_output: bool) -> None:
    from jobs.service.run_folders import RunFolders  # noqa: PLC0415
    from jobs.submission.assemble import pack_bundle, run_request_of  # noqa: PLC0415

    with TemporaryDirectory(prefix="rayscribe-") as folder:
        package = pack_bundle(bundle, Path(folder))
    run = run_of(
        run_request_of(spec, bundle, package.sha256),
        uid="<made at submission>",
        user=current_user(),
        address_of=lambda job: _known_address(job.address, service) or UNNAMED_ADDRESS,
        now_s=0.0,
    )
    resume_text = RunFolders(timeout_s=60.0).resume_text(run)
    request = build_request(
        run,
        1,
        package=f"<packages>/{run.package}.zip",
        resume=resume_text,
        code=None if spec.has_entry else "<packages>/<rayscribe>.zip",
    )
    built: dict[str, Any] = {"root": str(bundle.root), "files": package.files, "zip_bytes": package.size_bytes}
    if bundle.shipment is not None:
        built["shipped"] = {"files": len(bundle.shipment.files), "bytes": bundle.shipment.size_bytes}
    content = {**request.content(), "package": built}
    if json_output:
        as_json(content)
    else:
        typer.echo(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000), nl=False)


def _report(session: CommandSession, run: Run, how: Submission) -> None:
    session.runs.mean_queued(run.id)
    if not how.json_output:
        echo(f"{run.id}: submitted to queue {run.queue} · {run.run_folder}")
    try:
        if how.follow:
            # Standard output has the JSON document.
            show = partial(print_line, err=True) if how.json_output else print_text
            run = Follower(session, run.id, source="driver", show=show).run_to_end(states=True)
        elif session.standalone:
            run = _next_attempt(session, run)
    except KeyboardInterrupt:
        if how.goes_on:
            hint = " (it is started and retried only while a command runs)" if session.standalone else ""
            typer.echo(
                f"\n{run.id} remains in the ledger: rayscribe wait {run.id}{hint}, or rayscribe stop {run.id}", err=True
            )
        raise typer.Exit(130) from None
    screen.show(StageEnded())
    if how.json_output:
        as_json(run)
    elif not how.follow:
        echo(state_line(run))
        if session.standalone and not run.state.ended:
            waits = "without a service, it is started and retried"
            runs = "the cluster runs it by itself; without a service, it is retried after a failure"
            begins = waits if run.state.waiting else runs
            typer.echo(f"{begins} only while a command runs: rayscribe wait {run.id}")
    if not how.json_output:
        for line in next_steps(run, how.service):
            echo(line, err=True)
    if how.follow or run.state.ended:
        raise typer.Exit(exit_code_of(run))


def _next_attempt(session: CommandSession, queued: Run) -> Run:
    """Waits until Ray has accepted the next attempt of a queued run, the run ends, or its cluster was taken down."""
    status, hint_s = StatusPrinter(), time.monotonic() + HINT_S

    def submitted() -> bool:
        nonlocal hint_s
        run = session.operations.run(queued.id)
        attempts = [each for each in session.operations.attempts(queued.id) if each.number > queued.attempt]
        accepted = bool(attempts) and attempts[-1].submitted_s is not None
        tells_why = run.state.waiting and run.reason != queued.reason
        if run.state.ended or accepted or (tells_why and _is_gone(run.address)):
            return True  # the caller shows the last state
        status.print_changes(run)
        if time.monotonic() > hint_s:
            hint_s = math.inf
            typer.echo("without a service, this command waits until the run starts; Ctrl-C leaves it queued", err=True)
        return False

    session.wait_until(submitted)
    return session.operations.run(queued.id)


def _is_gone(address: str) -> bool:
    """Returns True if a cluster was taken down; a cluster that only does not respond may respond later."""
    try:
        connect(address)
    except ClusterError as error:
        return isinstance(error, ClusterGoneError)
    return False


def _check_checkpoint(run: Run, checkpoint: str) -> None:
    """Checks a checkpoint's name if this machine can read the run folder; otherwise, the nodes check it."""
    from jobs.service.run_folders import RunFolders  # noqa: PLC0415

    names = RunFolders().checkpoints(run)
    if names and not is_absolute(checkpoint) and checkpoint not in names:
        raise NotFoundError(f"run {run.id} has no checkpoint {checkpoint}: it has {', '.join(names)}")


def _run_exists(session: CommandSession, name: str) -> bool:
    try:
        session.runs.find(name)
    except NotFoundError:
        return False
    except ConflictError:
        pass  # there are several
    return True


def _findings(
    spec: JobSpec | None, address: str | None, *, deep: bool, bundle: "Bundle | None" = None
) -> "list[Finding]":
    from jobs.preflight.runner import run_preflight  # noqa: PLC0415

    clusters, known = None, _known_address(address, None)
    if known is not None:
        # Imported here, since Ray's client takes seconds to import.
        from jobs.clusters.registry import Clusters  # noqa: PLC0415

        clusters = Clusters()
    return run_preflight(spec, clusters=clusters, address=known, deep=deep, bundle=bundle)


def _preflight(spec: JobSpec, bundle: "Bundle", *, or_else: str = "") -> None:
    findings = _findings(spec, spec.job.address, deep=False, bundle=bundle)
    for finding in findings:
        if finding.level in ("warning", "error"):
            typer.echo(runner.line(finding), err=True)
    _raise_on_errors(findings, or_else)


def _raise_on_errors(findings: "list[Finding]", or_else: str = "") -> None:
    errors = sum(finding.level == "error" for finding in findings)
    if errors:
        raise PreflightError(
            f"preflight found {counted(errors, 'error')}; fix those marked {SIGNS[Level.ERROR]}{or_else}"
        )
