"""rayscribe cluster render, validate: files of a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster_configs.rendering.targets import KubernetesKind, Target
from jobs.cli.connect import JsonOption
from jobs.cli.output import as_json, echo
from trainers.config.loader import shipped
from trainers.errors import ConfigError

if TYPE_CHECKING:
    from cluster_configs.validation.validator import Report


def render(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="Description of the cluster, e.g. cluster_configs/specs/local.yaml.")
    ],
    target: Annotated[Target, typer.Option(help="What the file is for.")],
    kind: Annotated[
        KubernetesKind | None,
        typer.Option(help="Of --target kuberay: a cluster that stays, or one for a job. Default: raycluster."),
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
    # Imported here: other commands need none of it, and it takes as long to import as all the rest.
    from cluster_configs.rendering.cluster_spec import load_cluster_spec  # noqa: PLC0415
    from cluster_configs.rendering.render import render as rendered  # noqa: PLC0415
    from cluster_configs.rendering.render import unused  # noqa: PLC0415

    cluster = load_cluster_spec(spec, overrides)
    typer.echo(rendered(cluster, target, kind), nl=False)
    for line in unused(cluster, target):
        typer.echo(f"note: {line}", err=True)


def validate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="File for ray up, KubeRay, sbatch or qsub, or a cluster spec; its content tells which.",
        ),
    ],
    json_output: JsonOption = False,
) -> None:
    """Check a cluster file offline: fields, shell syntax, and rules, each with a name and a fix.

    Exits with 0, or with 2 where a rule is broken. A spec is checked as what is rendered from it, too.

    Example: rayscribe cluster validate cluster_configs/aws.yaml

    Example: rayscribe cluster validate my_job.sbatch --json
    """
    # Imported here: JSON schemas take a tenth of a second, and other commands need none.
    from cluster_configs.validation.file_reader import read_start  # noqa: PLC0415
    from cluster_configs.validation.installed import read_installed  # noqa: PLC0415
    from cluster_configs.validation.validator import validate as checked  # noqa: PLC0415

    try:
        content = read_start(shipped(file))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}): give a cluster file") from error
    report = checked(content, read_installed())
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
