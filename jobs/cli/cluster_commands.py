"""rayscribe cluster: starts, shows and ends clusters for runs; renders and validates their files."""

import shlex
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from cluster_configs.rendering.targets import KubernetesKind, Target
from jobs.addresses import cluster_address
from jobs.cli.completion import complete_cluster
from jobs.cli.connect import JsonOption, ServiceOption, open_session
from jobs.cli.output import as_json, echo
from jobs.clusters.managed.cluster_endpoint import connect
from jobs.clusters.managed.cluster_record import (
    ClusterRecord,
    LocalRecord,
    Record,
    all_records,
    lock_cluster,
    read_record,
    the_only_record,
)
from jobs.clusters.managed.ray_launcher import ray_environment
from jobs.clusters.managed.ssh_tunnel import Tunnel
from jobs.errors import ClusterError, ConflictError, JobLostError
from jobs.model import RunFilter, RunState
from trainers.config.loader import shipped
from trainers.config.strict_loading import YamlError, load_yaml_file
from trainers.errors import ConfigError, RayscribeError

if TYPE_CHECKING:
    from cluster_configs.validation.validator import Report

cluster = typer.Typer(help="Start, watch and end clusters.", no_args_is_help=True, rich_markup_mode=None)

LOCAL_NAME = "local"
UNFINISHED = RunFilter(states=[state for state in RunState if not state.ended])
PAGE = 500
NameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="Name of the cluster. Default: the only known cluster.",
        autocompletion=complete_cluster,
    ),
]


@cluster.command("render")
def render(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="Description of the cluster, e.g. cluster_configs/specs/local.yaml.")
    ],
    target: Annotated[Target, typer.Option(help="What the file is for.")],
    kind: Annotated[
        KubernetesKind | None,
        typer.Option(help="With --target kuberay: a cluster that stays, or one for a job. Default: raycluster."),
    ] = None,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Override a field, e.g. ray_up.head_ip=10.0.0.1; repeatable."),
    ] = [],  # noqa: B006
) -> None:
    """Render a cluster spec as the file of one target, and print it.

    Example: rayscribe cluster render cluster_configs/specs/local.yaml --target ray-up --set ray_up.head_ip=10.0.0.1

    Example: rayscribe cluster render my.yaml --target kuberay --kind rayjob > rayjob.yaml
    """
    # Imported here, since other commands do not need it, and it takes as long as all other imports.
    from cluster_configs.rendering.cluster_spec import load_cluster_spec  # noqa: PLC0415
    from cluster_configs.rendering.render import render as rendered  # noqa: PLC0415
    from cluster_configs.rendering.render import unused  # noqa: PLC0415

    cluster = load_cluster_spec(spec, overrides)
    typer.echo(rendered(cluster, target, kind), nl=False)
    for line in unused(cluster, target):
        typer.echo(f"note: {line}", err=True)


@cluster.command("validate")
def validate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="File for ray up, KubeRay, sbatch or qsub, or a cluster spec; its content determines the kind.",
        ),
    ],
    json_output: JsonOption = False,
) -> None:
    """Check a cluster file offline: fields, shell syntax, and rules, each with a name and a fix.

    Exits with 0, or with 2 if a rule is broken. For a spec, the files that are rendered from it are checked too.

    Example: rayscribe cluster validate cluster_configs/aws.yaml

    Example: rayscribe cluster validate my_job.sbatch --json
    """
    report = _validated(file)
    if json_output:
        broken = [
            {"rule": rule, "line": found.place.line, "path": found.place.path, "value": found.value, "fix": found.fix}
            for rule, found in report.broken
        ]
        head = {"file": str(file), "kind": report.kind, "valid": not report.broken}
        as_json({**head, "checked": report.checked, "broken": broken})
    else:
        _print_report(file, report)
    if report.broken:
        raise typer.Exit(ConfigError.exit_code)


def _validated(file: Path) -> "Report":
    # Imported here, since JSON schemas take a tenth of a second, and other commands do not need them.
    from cluster_configs.validation.file_reader import read_start  # noqa: PLC0415
    from cluster_configs.validation.validator import validate as validated  # noqa: PLC0415

    try:
        content = read_start(shipped(file))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}): give a cluster file") from error
    return validated(content)


def _print_report(file: Path, report: "Report") -> None:
    kind = f" ({report.kind})" if report.kind else ""
    if not report.broken:
        echo(f"{file}{kind}: ok, {len(report.checked)} rules checked")
        return
    names = len({rule for rule, _ in report.broken})
    echo(f"{file}{kind}: {names} of {len(report.checked)} rules broken")
    for rule, found in report.broken:
        echo(f"  {rule}: {found.place}")
        if found.value:
            echo(f"    value: {found.value}")
        echo(f"    fix:   {found.fix}")


def say(line: str) -> None:
    """Shows a line of progress."""
    typer.echo(line, err=True)


@cluster.command("up")
def up(  # noqa: PLR0913, PLR0917 -- one parameter per option
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="File of `ray up`, or a spec, which is rendered for it.")
    ] = None,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Override a field of a spec, e.g. ray_up.head_ip=10.0.0.1."),
    ] = [],  # noqa: B006
    local: Annotated[bool, typer.Option("--local", help="Start Ray on this machine only.")] = False,
    name: Annotated[str, typer.Option(help="With --local: name of the cluster.")] = LOCAL_NAME,
    num_cpus: Annotated[
        int | None, typer.Option(min=1, help="With --local: logical CPUs. Default: all of this machine's, at least 4.")
    ] = None,
    dashboard_port: Annotated[
        int | None, typer.Option(min=1024, max=65535, help="With --local: the dashboard's port. Default: 8265 if free.")
    ] = None,
    idle_stop: Annotated[
        int | None,
        typer.Option("--idle-stop", metavar="MINUTES", min=1, help="End the cluster after this long without jobs."),
    ] = None,
    timeout: Annotated[
        int, typer.Option(metavar="SECONDS", min=1, help="Longest wait for `ray up`, and then for its nodes.")
    ] = 1200,
    restart: Annotated[
        bool, typer.Option("--restart", help="Restart Ray if it is already running; its jobs are lost.")
    ] = False,
) -> None:
    """Start a cluster, and record how to connect to it.

    Repeat the command to continue a start that failed; it changes nothing if the cluster is up.

    Example: rayscribe cluster up --local

    Example: rayscribe cluster up my.yaml --idle-stop 60
    """
    if local == (file is not None) or (local and restart):
        raise ConfigError("name a file of `ray up` or a spec, or use --local alone for Ray on this machine")
    if local:
        _up_local(name, num_cpus, dashboard_port, idle_stop)
        return
    assert file is not None
    from jobs.clusters.managed import ray_up_cluster  # noqa: PLC0415

    content = _content_of(file, overrides)
    _warn_of_rules(file)
    record = ray_up_cluster.up(
        content, idle_stop_minutes=idle_stop, timeout_s=timeout, say=say, now_s=time.time(), restart=restart
    )
    typer.echo(f"{record.name} is up; submit to it: rayscribe submit RECIPE --cluster {record.name}")
    typer.echo(f"its dashboard, and Ray's own commands: rayscribe cluster dashboard {record.name}")


def _content_of(file: Path, overrides: list[str]) -> dict[str, Any]:
    file = shipped(file)
    try:
        content = load_yaml_file(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    except YamlError as error:
        raise ConfigError(f"{file} is not YAML: {error}") from error
    if not isinstance(content, dict) or {"cluster_name", "pools", "ray_up"}.isdisjoint(content):
        raise ConfigError(f"{file}: neither a file of `ray up` (cluster_name, provider, …) nor a spec (name, pools, …)")
    if "pools" in content or "cluster_name" not in content:
        from cluster_configs.rendering.cluster_spec import load_cluster_spec  # noqa: PLC0415
        from cluster_configs.rendering.render import render  # noqa: PLC0415

        rendered: dict[str, Any] = yaml.safe_load(render(load_cluster_spec(file, overrides), Target.RAY_UP))
        return rendered
    if overrides:
        raise ConfigError(f"{file} is a file of `ray up`, and --set changes specs only: edit the file")
    return content


def _warn_of_rules(file: Path) -> None:
    broken = sorted({rule for rule, _ in _validated(file).broken})
    if broken:
        say(f"! {file} breaks {', '.join(broken)}: `rayscribe cluster validate {file}` says how to fix it")


def _up_local(name: str, num_cpus: int | None, dashboard_port: int | None, idle_stop: int | None) -> None:
    from jobs.clusters.managed import local_cluster  # noqa: PLC0415

    record, started = local_cluster.up(
        name, num_cpus=num_cpus, dashboard_port=dashboard_port, idle_stop_minutes=idle_stop, say=say
    )
    if record.idle_stop_minutes is not None and idle_stop is None:
        say(f"it ends after {record.idle_stop_minutes} min without jobs, as before; --idle-stop changes that")
    typer.echo(f"{record.name} is up{'' if started else ' already'}: {record.dashboard}")
    typer.echo(f"submit to it: rayscribe submit RECIPE --cluster {record.name} (without, if it is the only cluster)")
    _print_exports(record, record.dashboard or "")
    typer.echo(f"its dashboard: rayscribe cluster dashboard {record.name}")


@cluster.command("down")
def down(
    name: NameArgument = None,
    force: Annotated[bool, typer.Option("--force", help="End it even if jobs run on it.")] = False,
    no_logs: Annotated[bool, typer.Option("--no-logs", help="Do not archive the logs of its nodes.")] = False,
    service: ServiceOption = None,
) -> None:
    """End a cluster and all its nodes, after archiving their logs. Lists unfinished runs that use it.

    Example: rayscribe cluster down speech
    """
    from jobs.clusters.managed import managed_cluster  # noqa: PLC0415

    name = _cluster(name).name
    say(f"looking for jobs on {name}")
    with lock_cluster(name):
        ending = _cluster(name)
        _name_runs(ending, service)
        _before_down(ending, force=force, with_logs=not no_logs)
        managed_cluster.down(ending, say=say, force=force)
    typer.echo(f"{name} is down")


def _name_runs(ending: Record, service: str | None) -> None:
    """Records how the cluster's jobs ended, which cannot be read later, and prints the runs that have not ended."""
    from jobs.clusters.managed.managed_cluster import has_dashboard_at  # noqa: PLC0415

    name = ending.name
    by_name: list[str] = []
    by_url: list[str] = []
    cursor, more = None, True
    try:
        with open_session(service) as session:
            # Not `refresh`, which would start runs on the cluster that is about to end.
            session.observe()
            while more:
                page = session.operations.runs(UNFINISHED, limit=PAGE, cursor=cursor)
                cursor, more = page.next_cursor, page.next_cursor is not None
                by_name += [run.id for run in page.runs if run.address == cluster_address(name)]
                by_url += [run.id for run in page.runs if has_dashboard_at(ending, run.address)]
    except RayscribeError as error:
        # No error, not even in the user's files, such as queues.yaml, may keep a paid cluster running.
        say(f"the runs that use {name} are not known: {error}")
    if by_name:
        say(
            f"unfinished runs use {name}: {', '.join(by_name)}; once it is down, they wait for a cluster of that name, "
            "and continue from their last checkpoint (rayscribe stop RUN ends one)"
        )
    if by_url:
        say(
            f"unfinished runs use {ending.dashboard} instead of the name {name}: {', '.join(by_url)}; once it is down, "
            "they wait for Ray at exactly that address: stop them (rayscribe stop RUN) and submit them again with "
            "--cluster"
        )


def _before_down(record: Record, *, force: bool, with_logs: bool) -> None:
    from jobs.clusters.managed.managed_cluster import has_ended  # noqa: PLC0415
    from jobs.clusters.managed.node_logs import archive_logs  # noqa: PLC0415
    from jobs.clusters.ray_jobs import RayJobs  # noqa: PLC0415

    try:
        working = RayJobs(cluster_address(record.name)).working_jobs()
    except ClusterError as error:
        if not (force or record.state == "starting" or isinstance(error, JobLostError) or has_ended(record)):
            raise ConflictError(
                f"it is not known whether jobs run on {record.name}: {error}\nrepeat the command when it responds, "
                "or end it with the jobs that it may have: --force"
            ) from error
        say(f"{error}\nstopping it without a check for running jobs{' and without its logs' if with_logs else ''}")
        return
    if working and not force:
        raise ConflictError(
            f"jobs run on {record.name} ({', '.join(working[:3])}): stop them (rayscribe stop RUN), "
            "or end them with it: --force"
        )
    if with_logs:
        folder = record.files / time.strftime("logs-%Y%m%d-%H%M%S", time.gmtime())
        try:
            copied = archive_logs(connect(cluster_address(record.name)), folder, say)
        except ClusterError as error:
            say(f"{error}\nit is ended, but its logs are not archived")
        else:
            typer.echo(f"{copied} log files of its nodes: {folder}")


@cluster.command("status")
def status(name: NameArgument = None, json_output: JsonOption = False) -> None:
    """Show the clusters that this machine has started. Prints state and resources of each.

    Example: rayscribe cluster status
    """
    from jobs.clusters.managed.managed_cluster import status_of  # noqa: PLC0415

    found = [status_of(record) for record in ([read_record(name)] if name is not None else all_records())]
    if json_output:
        as_json([asdict(item) for item in found])
        return
    if not found:
        typer.echo("no cluster was started from this machine: rayscribe cluster up --local")
    for item in found:
        typer.echo(f"{item.name}  {item.kind}  {item.state}  {item.text}")


@cluster.command("dashboard")
def dashboard(
    name: NameArgument = None,
    port: Annotated[
        int | None, typer.Option(min=1024, max=65535, help="Port on this machine. Default: any free one.")
    ] = None,
) -> None:
    """Show how to open a cluster's dashboard. Forwards the port of a remote one to this machine until Ctrl-C.

    A browser asks for the token once, and keeps it for 30 days. Ray's own commands work with the printed variables.

    Example: rayscribe cluster dashboard speech --port 8265
    """
    from jobs.clusters.managed.managed_cluster import ended_text, has_ended, with_head  # noqa: PLC0415

    record = _cluster(name)
    if record.dashboard is not None:
        if has_ended(record):
            raise ConflictError(f"{record.name} has no dashboard: {ended_text(record)}")
        print_dashboard(record, record.dashboard)
        _print_exports(record, record.dashboard)
        return
    tunnel = Tunnel(with_head(record), port=port)
    try:
        tunnel.ensure()
        print_dashboard(record, tunnel.url)
        _print_exports(record, tunnel.url)
        typer.echo("Ctrl-C ends the port forwarding", err=True)
        while True:
            time.sleep(1.0)
            tunnel.ensure()
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    finally:
        tunnel.close()


@cluster.command("ssh", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def ssh(
    name: NameArgument = None,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND]", help="Run this instead of a shell.")
    ] = None,
) -> None:
    """Open a shell on a cluster's head, or run a command there.

    Example: rayscribe cluster ssh speech -- nvidia-smi
    """
    from jobs.clusters.managed.managed_cluster import with_head  # noqa: PLC0415
    from jobs.clusters.managed.ray_up_cluster import attach_command  # noqa: PLC0415

    record = with_head(_cluster(name))
    line = shlex.join(command) if command else None
    arguments = attach_command(record, line, terminal=sys.stdin.isatty() and sys.stdout.isatty())
    sys.stdout.flush()
    raise typer.Exit(subprocess.run(arguments, env=ray_environment(record), check=False).returncode)


def _cluster(name: str | None) -> Record:
    found = read_record(name) if name is not None else the_only_record()
    if isinstance(found, LocalRecord):
        found.check_machine()
    return found


def print_dashboard(record: "ClusterRecord", url: str) -> None:
    """Prints how to open a dashboard; not the token itself, which others might later read in the terminal."""
    typer.echo(f"dashboard of {record.name}: {url}\n  a browser asks once for the token: cat {_shown(record)}")


def _print_exports(record: "ClusterRecord", url: str) -> None:
    typer.echo(f"for Ray's own commands (ray job submit, …):\n  export RAY_API_SERVER_ADDRESS={url}")
    typer.echo(f"  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={_shown(record)}")


def _shown(record: "ClusterRecord") -> str:
    path = record.token_path
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)
