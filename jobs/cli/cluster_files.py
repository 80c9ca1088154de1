"""rayscribe cluster render: files of a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from cluster_configs.rendering.render import Kind, Target
from cluster_configs.rendering.render import render as rendered
from cluster_configs.rendering.spec_loader import load_cluster_spec


def render(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="Description of the cluster, e.g. cluster_configs/specs/local.yaml.")
    ],
    target: Annotated[Target, typer.Option(help="What the file is for.")],
    kind: Annotated[
        Kind | None,
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
    typer.echo(rendered(load_cluster_spec(spec, overrides), target, kind), nl=False)
