"""rayscribe launch: runs a program that torchrun could start on the workers of a Ray cluster."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import yaml

from jobs.cli.completion import cluster_option
from jobs.cli.connect import JsonOption, ServiceOption
from jobs.cli.output import ForceOption, write_file
from jobs.cli.submit import (
    DryRunOption,
    FollowOption,
    NoPreflightOption,
    Submission,
    named_address,
    submit_spec,
)
from jobs.cli.train import Overrides, joined
from jobs.submission.assemble import program_of
from jobs.submission.job_spec import ScriptRunConfig, load_spec
from runtime_env.package import no_such_file
from runtime_env.secret_arguments import find_literal_secrets
from trainers.config.flags.task_line import TaskArguments
from trainers.config.locations import as_written_to
from trainers.config.overrides import Override, apply_overrides, parse_override
from trainers.config.schema import trainer_of
from trainers.config.strict_loading import load_yaml
from trainers.config.validation import refuse, validated
from trainers.errors import ConfigError
from trainers.main import run_task
from trainers.scripts.recipe import resolve_program

Line = Annotated[
    list[str], typer.Argument(metavar="PROGRAM…", help="The program with its arguments, or a line with a launcher.")
]
NumWorkers = Annotated[int | None, typer.Option(min=1, help="Processes in total, one per device.")]
UseGpu = Annotated[bool, typer.Option("--use-gpu", help="One GPU for each process.")]
AcceleratorOption = Annotated[
    str | None, typer.Option(help="One device of this kind for each process: cpu, cuda, rocm or hpu.")
]
Resources = Annotated[
    str | None, typer.Option(metavar="{NAME: NUMBER}", help="What each process reserves, e.g. '{CPU: 8}'.")
]
Name = Annotated[str | None, typer.Option(help="Name of the run; the same name continues it.")]
StoragePath = Annotated[str | None, typer.Option(help="Folder or bucket of the run folder.")]
Python = Annotated[str | None, typer.Option(help="Interpreter of the program on each node.")]
WorkingDir = Annotated[str | None, typer.Option(help="Subfolder of this one in which the program runs.")]
SyncDir = Annotated[str | None, typer.Option(help="Folder of its output, if its arguments do not name it.")]
Prepare = Annotated[str | None, typer.Option(help="A command that runs once before it; see script.prepare.")]
Env = Annotated[list[str], typer.Option(metavar="NAME=VALUE", help="A variable of the program; repeatable.")]
Write = Annotated[Path | None, typer.Option(metavar="FILE", help="Only write the recipe; - for standard output.")]
Submit = Annotated[bool, typer.Option("--submit", help="Queue it as a run, as `rayscribe submit` does.")]
Address = Annotated[
    str | None,
    typer.Option(
        help="Address of the Ray to join, or with --submit, URL of the cluster's dashboard. Default: Ray on this "
        "machine; with --submit, the service's first cluster."
    ),
]
Cluster = Annotated[
    str | None,
    cluster_option(
        "A cluster of `rayscribe cluster up`, by its name. Default: none; with --submit the only one.",
        "RAYSCRIBE_CLUSTER",
    ),
]


def launch(  # noqa: PLR0913, PLR0917 -- one parameter per option
    line: Line,
    num_workers: NumWorkers = None,
    use_gpu: UseGpu = False,
    accelerator: AcceleratorOption = None,
    resources: Resources = None,
    name: Name = None,
    storage_path: StoragePath = None,
    python: Python = None,
    working_dir: WorkingDir = None,
    sync_dir: SyncDir = None,
    prepare: Prepare = None,
    env: Env = [],  # noqa: B006
    overrides: Overrides = [],  # noqa: B006
    write: Write = None,
    force: ForceOption = False,
    submit: Submit = False,
    address: Address = None,
    cluster: Cluster = None,
    follow: FollowOption = False,
    dry_run: DryRunOption = False,
    skip_preflight: NoPreflightOption = False,
    service: ServiceOption = None,
    json_output: JsonOption = False,
) -> None:
    """Run an unmodified torchrun program on Ray workers. --submit queues it as a run.

    Example: rayscribe launch --num-workers 4 --use-gpu -- train.py --output_dir out --do_train

    Example: rayscribe launch --submit --follow -- torchrun --nproc_per_node 4 train.py hparams.yaml
    """
    given = {
        "script.command": line[0] if len(line) == 1 and " " in line[0] else line,
        "scaling.num_workers": num_workers,
        "scaling.use_gpu": use_gpu or None,
        "scaling.accelerator": accelerator,
        "scaling.resources_per_worker": load_yaml(resources) if resources is not None else None,
        "run.name": name,
        "run.storage_path": storage_path,
        "script.python": python,
        "script.working_dir": working_dir,
        "script.sync_dir": sync_dir,
        "script.prepare": prepare,
        "script.env": _variables(env) or None,
    }
    recipe = _recipe({key: value for key, value in given.items() if value is not None}, overrides)
    how = Submission(service, follow, dry_run, skip_preflight, json_output)
    _refuse_contradictions(how, write, submit=submit, force=force)
    at = named_address(address, cluster, service) if write is not None or submit or dry_run else None
    if write is not None:
        placed = apply_overrides(recipe, [(("job", "address"), at)] if at is not None else [])
        _write(dict(as_written_to(write, placed)), write, force=force)
    elif submit or dry_run:
        chosen = [f"job.address={at}"] if at is not None else []
        spec = load_spec(_origin(recipe), chosen, recipe=recipe, now=datetime.now(UTC), is_local=how.is_local)
        submit_spec(spec, how)
    else:
        _run(recipe, address, cluster)


def _recipe(given: Mapping[str, Any], overrides: list[str]) -> dict[str, Any]:
    options: list[Override] = [(tuple(key.split(".")), value) for key, value in given.items()]
    base = {"trainer": "script", "run": {}, "script": {}, "scaling": {}, "job": {}}
    content = apply_overrides(base, [*options, *map(parse_override, overrides)])
    if trainer_of(content) != "script":
        raise ConfigError("--set trainer: launch runs programs; use `rayscribe train` for a training")
    recipe = resolve_program(content, os.environ, lambda note: typer.echo(note, err=True))
    # Checked here, since later errors would name a recipe file, which does not exist.
    refuse([*find_literal_secrets(recipe), *validated(ScriptRunConfig, recipe)[1]], "launch")
    return recipe


def _run(recipe: Mapping[str, Any], address: str | None, cluster: str | None) -> NoReturn:
    """Runs the program, and exits with its exit code; raises ConfigError if it should run here and does not exist."""
    is_here = not (address or cluster or "RAY_ADDRESS" in os.environ)
    config, _ = validated(ScriptRunConfig, recipe)
    program = program_of(config) if config is not None and is_here else None
    if program is not None and not Path(program).is_file():
        raise ConfigError(f"script.command: {no_such_file(Path.cwd(), program)}")
    raise typer.Exit(run_task(TaskArguments(_origin(recipe), recipe=recipe, address=joined(address, cluster))))


def _refuse_contradictions(how: Submission, write: Path | None, *, submit: bool, force: bool) -> None:
    submits = submit or how.dry_run
    if write is not None and submits:
        raise ConfigError("--write only writes the recipe, for a later submission: leave out --submit and --dry-run")
    if not submits and (how.follow or how.service or how.skip_preflight or how.json_output):
        raise ConfigError("--follow, --service, --no-preflight and --json are for submitted runs: add --submit")
    if force and write is None:
        raise ConfigError("--force is for --write, whose file it replaces: add --write FILE, or leave --force out")


def _write(recipe: dict[str, Any], path: Path, *, force: bool) -> None:
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
    write_file(None if str(path) == "-" else path, text, "--write", force=force)


def _origin(recipe: Mapping[str, Any]) -> Path:
    """Returns a path for the recipe, from which a run without a name gets one."""
    words = recipe["script"]["command"]
    return Path(next((word for word in words if not word.startswith("-")), "program")).with_suffix(".yaml")


def _variables(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise ConfigError(f"--env {pair}: write it as NAME=VALUE")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
