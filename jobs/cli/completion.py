"""Shell completion: names of runs, clusters and recipes, and keys of --set. Imports neither Ray nor torch.

`rayscribe --install-completion` sets it up. Names that cannot be read in time are left out.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import typer

from jobs.clusters.timeouts import CallTimeoutError, call_with_timeout
from jobs.paths import default_database
from trainers.errors import RayscribeError

# The user is waiting for the completion. Seconds.
TIMEOUT_S = 1.5
NAMES = 200
SQLITE = "sqlite:///"
Complete = Callable[[typer.Context, str], list[str]]


def _completing(words: Callable[[typer.Context, str], Iterable[str]]) -> Complete:
    """Returns a completion that offers the words with the typed prefix; it offers none if reading times out."""

    @wraps(words)
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        found: list[str] = []
        with suppress(RayscribeError, OSError, CallTimeoutError):
            found = call_with_timeout(lambda: [*words(ctx, incomplete)], TIMEOUT_S)
        return [word for word in dict.fromkeys(found) if word.startswith(incomplete)]

    return complete


@_completing
def complete_run(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Yields names of runs, newest first: those without a queue, then those of the service or the local ledger."""
    from trainers.run_folder.run_register import all_registered  # noqa: PLC0415

    yield from (run.name for run in all_registered())
    if service := ctx.params.get("service") or os.environ.get("RAYSCRIBE_SERVICE"):
        from jobs.api.client import Client  # noqa: PLC0415

        with Client(service) as client:
            yield from (run.id for run in client.runs(limit=NAMES).runs)
    elif not (url := default_database()).startswith(SQLITE) or Path(url.removeprefix(SQLITE)).exists():
        from jobs.ledger import Ledger  # noqa: PLC0415

        ledger = Ledger.open(url)
        yield from (run.id for run in ledger.runs(limit=NAMES).runs)
        ledger.close()


@_completing
def complete_cluster(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Returns the names of clusters that were started here."""
    from jobs.clusters.managed.cluster_record import all_records  # noqa: PLC0415

    return [record.name for record in all_records()]


@_completing
def complete_recipe(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Yields recipes: YAML files and folders, then shipped ones."""
    from trainers.config.loader import shipped_recipes  # noqa: PLC0415

    folder, _, start = incomplete.rpartition("/")
    for path in sorted(Path(folder or ".").glob(f"{start}*")):
        if path.is_dir() or path.suffix in (".yaml", ".yml"):
            yield f"{path}/" if path.is_dir() else str(path)
    yield from shipped_recipes()


@_completing
def complete_key(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Returns the keys of a recipe, in the form of --set."""
    from jobs.submission.job_spec import RUN_CONFIGS  # noqa: PLC0415
    from trainers.config.validation import keys_of  # noqa: PLC0415

    return [f"{key}=" for kind in RUN_CONFIGS.values() for key in keys_of(kind)]


def run_argument(text: str, metavar: str = "RUN") -> Any:
    """Returns an argument for one or several runs, with its help."""
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete_run)


def cluster_option(text: str, variable: str | None = None) -> Any:
    """Returns an option for a cluster of `rayscribe cluster up`, with its help."""
    return typer.Option(envvar=variable, metavar="NAME", help=text, autocompletion=complete_cluster)
