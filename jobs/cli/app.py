"""Assembles the `rayscribe` command."""

import io
import re
import signal
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import typer

from jobs.cli import cluster_commands, demo, import_command, launch_command, recipes, runs, serve, submit, train
from jobs.cli.results import model_commands, scoring_commands, transcribe_command
from runtime_env.own_code import VERSION
from trainers.config.wording import printable
from trainers.distributed.console import print_line
from trainers.errors import ConfigError, RayscribeError, StorageError, refused_by_disk

app = typer.Typer(
    help="Fine-tune speech recognizers on a Ray cluster.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
OVERRIDE = re.compile(r"[a-z_]+(\.\w+)+=.*", re.DOTALL)
# Commands whose arguments may be another program's.
TAKES_A_LINE = ("launch", "import-command")
LOCAL, JOBS, CLUSTERS, SERVICE = "Local", "Jobs", "Clusters", "Service"
for command, name, panel in (
    (demo.demo, "demo", LOCAL),
    (recipes.init, "init", LOCAL),
    (recipes.recipes, "recipes", LOCAL),
    (train.train, "train", LOCAL),
    (train.prepare, "prepare", LOCAL),
    (train.evaluate, "evaluate", LOCAL),
    (transcribe_command.transcribe, "transcribe", LOCAL),
    (scoring_commands.score, "score", LOCAL),
    (scoring_commands.compare, "compare", LOCAL),
    (model_commands.report, "report", LOCAL),
    (model_commands.export, "export", LOCAL),
    (model_commands.push, "push", LOCAL),
    (model_commands.average, "average", LOCAL),
    (launch_command.launch, "launch", JOBS),
    (import_command.import_command, "import-command", LOCAL),
    (submit.preflight, "preflight", JOBS),
    (submit.submit, "submit", JOBS),
    (runs.list_runs, "list", JOBS),
    (runs.status, "status", JOBS),
    (runs.logs, "logs", JOBS),
    (runs.events, "events", JOBS),
    (runs.wait, "wait", JOBS),
    (runs.stop, "stop", JOBS),
    (submit.resume, "resume", JOBS),
    (runs.forget, "forget", JOBS),
    (runs.usage, "usage", JOBS),
    (serve.ui, "ui", JOBS),
    (serve.serve, "serve", SERVICE),
):
    # For `launch`, everything after the program's name is the program's.
    settings = {"allow_interspersed_args": name != "launch"}
    app.command(name, rich_help_panel=panel, context_settings=settings)(command)
app.add_typer(cluster_commands.cluster, name="cluster", rich_help_panel=CLUSTERS)
app.add_typer(serve.tokens, name="token", rich_help_panel=SERVICE)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rayscribe {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; expected errors are printed as one message."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names may not be valid text.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _refuse_bare_overrides(sys.argv[1:] if arguments is None else arguments)
        app(arguments, prog_name="rayscribe")
    except RayscribeError as error:
        print_line(printable(f"error: {error}"), sys.stderr)
        return error.exit_code
    except OSError as error:
        if (text := refused_by_disk(error)) is None:
            raise
        print_line(printable(f"error: {text}"), sys.stderr)
        return StorageError.exit_code
    except SystemExit as end:
        # The reader has closed the pipe, e.g. `| head`; typer exits with 1.
        if isinstance(end.__context__, BrokenPipeError):
            return 128 + signal.SIGPIPE
        return end.code if isinstance(end.code, int) else 1
    return 0


def _refuse_bare_overrides(arguments: Sequence[str]) -> None:
    if arguments and arguments[0] in TAKES_A_LINE:
        return
    bare = [word for before, word in pairwise(arguments) if OVERRIDE.fullmatch(word) and not before.startswith("-")]
    if bare:
        raise ConfigError(f"{bare[0]}: an override is written --set {bare[0]}")
