"""The commands that run without a queue: train, prepare, evaluate."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from jobs.addresses import cluster_address
from jobs.cli.completion import cluster_option, complete_key, complete_recipe, complete_run
from jobs.cli.connect import ServiceOption, open_session
from jobs.cli.output import echo
from jobs.clusters.managed.cluster_endpoint import connect
from jobs.clusters.managed.cluster_record import RayUpRecord, read_record, record_at
from jobs.errors import ConflictError, NotFoundError
from jobs.model import Run, RunState
from trainers.config.flags.task_line import TaskArguments
from trainers.config.storage_location import in_home
from trainers.errors import ConfigError
from trainers.main import run_task
from trainers.run_folder.layout import CONFIG, MODEL
from trainers.run_folder.run_register import Registered
from trainers.scripts.recipe import resolve_program

Spec = Annotated[
    Path,
    typer.Argument(
        metavar="SPEC",
        help="Recipe: a file, or the name of a shipped recipe, e.g. whisper_micro.",
        autocompletion=complete_recipe,
    ),
]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a field, e.g. training.max_steps=200; repeatable.",
        autocompletion=complete_key,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="A Ray cluster: host:port, or the URL of a dashboard on this host. Default: RAY_ADDRESS, or this machine "
        "only."
    ),
]
Cluster = Annotated[
    str | None, cluster_option("A cluster of this machine that `rayscribe cluster up --local` has started.")
]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON document per line, for programs.")]
OnRay = Annotated[
    bool | None,
    typer.Option(
        "--ray/--no-ray",
        help="Run on Ray, or only in this process. Default: on Ray if the recipe needs it, otherwise in processes on "
        "this machine.",
    ),
]


def train(  # noqa: PLR0913, PLR0917 -- one parameter per option
    spec: Spec,
    overrides: Overrides = [],  # noqa: B006
    address: Address = None,
    cluster: Cluster = None,
    ray: OnRay = None,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Run every stage on two batches, in this process, and keep no files."),
    ] = False,
    find_lr: Annotated[
        bool,
        typer.Option(
            "--find-lr",
            help="Train 60 steps with a rising learning rate, in this process, keep no run, and suggest a rate.",
        ),
    ] = False,
    require_better: Annotated[
        bool,
        typer.Option(
            "--require-better", help="Exit with 17 unless the model is better than the weights that the run began with."
        ),
    ] = False,
    json_lines: JsonLines = False,
) -> None:
    """Prepare, train, evaluate and export, without a queue.

    Run the same command again to continue an interrupted run.

    Example: rayscribe train jobs/specs/whisper_digits.yaml --set data.train=my.csv --set run.storage_path=/mnt/runs
    """
    wanted = [*overrides, "evaluate.require_better=true"] if require_better else overrides
    _run("train", spec, wanted, address, cluster, ray, debug=debug, find_lr=find_lr, json=json_lines)


def prepare(
    spec: Spec,
    overrides: Overrides = [],  # noqa: B006
    address: Address = None,
    cluster: Cluster = None,
    ray: OnRay = None,
    texts: Annotated[
        bool,
        typer.Option("--texts", help="Report on the transcripts: characters, mixed scripts, unusual lengths."),
    ] = False,
    json_lines: JsonLines = False,
) -> None:
    """Decode and store all splits, and print the counts.

    Splits that are already stored are reused.

    Example: rayscribe prepare my.yaml --set data.train=s3://bucket/train.csv

    Example: rayscribe prepare my.yaml --texts
    """
    _run("prepare", spec, overrides, address, cluster, ray, texts=texts, json=json_lines)


def evaluate(  # noqa: PLR0913, PLR0917 -- one parameter per option
    spec: Spec,
    model: Annotated[
        str,
        typer.Option(
            metavar="RUN|FOLDER|ID",
            help="A run, by its name, folder or URL; a folder with a model; or an id of the Hub.",
            autocompletion=complete_run,
        ),
    ],
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    nbest: Annotated[
        int | None,
        typer.Option(metavar="N", help="Write the N best hypotheses of each utterance; at most the number of beams."),
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    address: Address = None,
    cluster: Cluster = None,
    ray: OnRay = None,
    service: ServiceOption = None,
    json_lines: JsonLines = False,
) -> None:
    """Score a trained model on a split, into a new folder.

    Example: rayscribe evaluate my.yaml --model whisper-digits --set data.test=other/test.csv
    """
    scored = {"model": model_of(model, service), "split": split, "nbest": nbest}
    _run("evaluate", spec, overrides, address, cluster, ray, **scored, json=json_lines)


def _run(
    verb: str,
    spec: Path,
    overrides: list[str],
    address: str | None,
    cluster: str | None,
    ray: bool | None,
    **options: Any,
) -> NoReturn:
    named = [("--set", each) for each in overrides] + [("--address", address), ("--cluster", cluster)]
    words = [word for name, value in named if value is not None for word in (name, value)]
    engines = {True: ["--ray"], False: ["--no-ray"], None: []}
    typed, at = [str(spec), *words, *engines[ray]], joined(address, cluster)
    raise typer.Exit(run_task(TaskArguments(spec, overrides, verb=verb, address=at, ray=ray, command=typed, **options)))


def continue_run(run: Run, known: Registered, config: Mapping[str, Any] | None) -> int:
    """Continues a run without a queue as it was started, or starts a new one from a config; returns the exit code.

    Raises:
        ConflictError: the run is active or complete.
        ConfigError: the working directory of its program does not exist.
    """
    # If the driver ended too early, the run is continued even if its training succeeded.
    is_done = run.state == RunState.SUCCEEDED and (known.exit_code == 0 or known.is_running is None)
    if config is None and (not run.state.ended or is_done):
        fix = "nothing is left to do" if is_done else f"stop it first: `rayscribe stop {run.id}`"
        raise ConflictError(f"run {run.id} is {run.state}; only a failed or stopped run is resumed: {fix}")
    folder = Path(known.folder)
    if folder.is_dir():
        os.chdir(folder)
    elif known.config.get("trainer") == "script":
        raise ConfigError(f"{run.id} runs a program in {folder}, which does not exist: create it")
    recipe = known.config if config is None else config
    recipe = resolve_program(recipe, os.environ, partial(echo, err=True))
    again = TaskArguments(
        Path(CONFIG), recipe=recipe, address=joined(known.address, None), ray=False if known.no_ray else None
    )
    return run_task(again)


def model_of(text: str, service: str | None, argument: str = "--model") -> str:
    """Returns the folder of the run that an argument names, or the text itself if it is a location or a Hub id.

    A run takes precedence over a folder of the same name without a model, e.g. the recordings it was trained on.

    Raises:
        NotFoundError: there is no such run.
        ConflictError: several runs have this name, or the run ended without a model.
    """
    here = in_home(text)
    if "/" in text or any((here / name).exists() for name in (CONFIG, MODEL, "config.json")):
        return text
    with open_session(service) as session:
        try:
            run = session.runs.run(text)
        except NotFoundError as error:
            if here.exists():
                return text
            raise NotFoundError(f"{argument} {text}: {error} (ids of the Hub are OWNER/NAME)") from None
    if run.attempt == 0 and run.state.ended and run.state != RunState.SUCCEEDED:
        raise ConflictError(f"{argument} {text}: the run ended before it had a model: {run.state} · {run.reason}")
    return run.run_folder


def joined(address: str | None, cluster: str | None) -> str | None:
    """Returns the address of the Ray to join; sets the environment variables of its token if it was started here.

    Raises:
        ConfigError: the cluster is elsewhere, so that only its own hosts can join it.
        ClusterError: the cluster is not up yet, or has ended, so that another process may listen at its port.
    """
    if address is not None and cluster is not None:
        raise ConfigError("--address and --cluster both name a cluster: keep one")
    named = address or os.environ.get("RAY_ADDRESS")
    record = read_record(cluster) if cluster is not None else record_at(named) if named else None
    if record is None:
        return address
    if isinstance(record, RayUpRecord):
        raise ConfigError(
            f"cluster {record.name} is elsewhere, but training can join Ray only on this host: submit it as a job "
            f"(rayscribe submit RECIPE --cluster {record.name})"
        )
    connect(cluster_address(record.name))
    # The token variables of the environment are another cluster's; Ray prefers RAY_AUTH_TOKEN to RAY_AUTH_TOKEN_PATH.
    os.environ.pop("RAY_AUTH_TOKEN", None)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(record.token_path)}
    return record.address
