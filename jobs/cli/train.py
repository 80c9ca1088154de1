"""The commands that run without a queue: train, prepare, evaluate."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from jobs.addresses import cluster_address
from jobs.clusters.managed.cluster_endpoint import connect
from jobs.clusters.managed.cluster_record import RayUpRecord, read_record, record_at
from trainers.errors import ConfigError
from trainers.main import TaskArguments, run_task

Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="Recipe, e.g. jobs/specs/whisper_micro.yaml.")]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override a field, e.g. training.max_steps=200; repeatable."),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="A Ray cluster: host:port, or the URL of the dashboard of one on this host. Default: RAY_ADDRESS, or "
        "start Ray on this machine."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A cluster of this machine that `rayscribe cluster up --local` has started."),
]
WithoutRay = Annotated[bool, typer.Option("--no-ray", help="Run in this process, without Ray.")]


def train(
    spec: Spec,
    overrides: Overrides = [],  # noqa: B006
    address: Address = None,
    cluster: Cluster = None,
    no_ray: WithoutRay = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Take two batches through every stage, in this process, and keep nothing."),
    ] = False,
) -> None:
    """Prepare, train, evaluate and export, without a queue.

    Run the same command again to continue an interrupted run.

    Example: rayscribe train jobs/specs/whisper_digits.yaml --set data.train=my.csv --set run.storage_path=/mnt/runs
    """
    ray = joined(address, cluster)
    raise typer.Exit(run_task(TaskArguments(spec, overrides, verb="train", address=ray, no_ray=no_ray, debug=debug)))


def prepare(
    spec: Spec,
    overrides: Overrides = [],  # noqa: B006
    address: Address = None,
    cluster: Cluster = None,
    no_ray: WithoutRay = False,
    texts: Annotated[
        bool,
        typer.Option("--texts", help="Report on the transcripts: characters, mixed scripts, texts of odd lengths."),
    ] = False,
) -> None:
    """Decode and store all splits, and print the counts.

    Splits that are already stored are reused.

    Example: rayscribe prepare my.yaml --set data.train=s3://bucket/train.csv

    Example: rayscribe prepare my.yaml --texts
    """
    arguments = TaskArguments(spec, overrides, verb="prepare", address=joined(address, cluster), no_ray=no_ray)
    raise typer.Exit(run_task(replace(arguments, texts=texts)))


def evaluate(
    spec: Spec,
    model: Annotated[
        str,
        typer.Option(metavar="FOLDER", help="Folder of a run or of a model, or an id of the Hub; no name of a run."),
    ],
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    nbest: Annotated[
        int | None,
        typer.Option(metavar="N", help="Write the N best hypotheses of each utterance, at most as many as beams."),
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    address: Address = None,
    cluster: Cluster = None,
    no_ray: WithoutRay = False,
) -> None:
    """Score a trained model on a split, into a new folder.

    Example: rayscribe evaluate my.yaml --model ~/ray_results/whisper-digits --set data.test=other/test.csv
    """
    arguments = TaskArguments(spec, overrides, verb="evaluate", address=joined(address, cluster), no_ray=no_ray)
    raise typer.Exit(run_task(replace(arguments, model=model, split=split, nbest=nbest)))


def joined(address: str | None, cluster: str | None) -> str | None:
    """The Ray to join; the token of one that was started here is found for this process, before Ray reads it.

    Raises:
        ConfigError: the cluster is elsewhere, and drivers join from within it.
        ClusterError: it is not up yet, or has ended: at its port somebody else may listen.
    """
    if address is not None and cluster is not None:
        raise ConfigError("--address and --cluster both name a cluster: keep one")
    named = address or os.environ.get("RAY_ADDRESS")
    record = read_record(cluster) if cluster is not None else record_at(named) if named else None
    if record is None:
        return address
    if isinstance(record, RayUpRecord):
        raise ConfigError(
            f"cluster {record.name} is elsewhere, and training joins a Ray of this host only: submit it as a job "
            f"(rayscribe submit RECIPE --cluster {record.name})"
        )
    connect(cluster_address(record.name))
    # Those of the environment are of another cluster, and Ray takes the first before the second.
    os.environ.pop("RAY_AUTH_TOKEN", None)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(record.token_path)}
    return record.address
