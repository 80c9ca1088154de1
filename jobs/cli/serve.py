"""rayscribe serve, ui, token: runs the service or its pages, and manages the service's users."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.addresses import cluster_address
from jobs.cli.connect import JsonOption
from jobs.cli.output import as_json, clock
from jobs.clusters.managed.cluster_record import read_record
from jobs.paths import default_database
from trainers.config.submitted import read_growth
from trainers.errors import ConfigError

if TYPE_CHECKING:
    from jobs.ledger.tokens import Tokens

LOOPBACK = "127.0.0.1"
PORT, UI_PORT = 8470, 8471

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        envvar="RAYSCRIBE_DATABASE", metavar="URL", help="sqlite:////path/ledger.db or postgresql://… Default: a file."
    ),
]
tokens = typer.Typer(help="Manage the tokens of the service's users.", no_args_is_help=True, rich_markup_mode=None)


def serve(
    database: DatabaseOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any.")] = PORT,
    address: Annotated[
        list[str] | None,
        typer.Option(
            envvar="RAY_API_SERVER_ADDRESS", help="URL of a cluster's dashboard; repeatable, the first is the default."
        ),
    ] = None,
    cluster: Annotated[
        list[str], typer.Option(metavar="NAME", help="A cluster of `rayscribe cluster up`, by its name; repeatable.")
    ] = [],  # noqa: B006
    queues: Annotated[
        Path | None, typer.Option(metavar="FILE", help="queues.yaml with the limits of the queues.")
    ] = None,
    grows_to: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=NUMBER[@URL]",
            help="Resources that a cluster's autoscaler can grow it to; without @URL, the first cluster's. Repeatable.",
        ),
    ] = [],  # noqa: B006
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Require no token; on loopback only.")] = False,
) -> None:
    """Run the service: a durable queue with an HTTP API.

    It also has pages for a browser, below /ui.

    Example: rayscribe serve --address http://127.0.0.1:8265 --queues queues.yaml

    Example: rayscribe serve --database postgresql://rayscribe@db/rayscribe --host 0.0.0.0 --grows-to GPU=16

    Example: rayscribe serve --address http://a:8265 --address http://b:8265 --grows-to GPU=64@http://b:8265
    """
    from jobs.api.server.process import ServeSettings, served_addresses  # noqa: PLC0415
    from jobs.api.server.process import serve as run_service  # noqa: PLC0415

    addresses = served_addresses([*(address or []), *(cluster_address(read_record(name).name) for name in cluster)])
    run_service(
        ServeSettings(
            database=database,
            host=host,
            port=port,
            addresses=tuple(addresses),
            queues_file=queues,
            grows_to=growth_of(grows_to, addresses),
            no_auth=no_auth,
        )
    )


def ui(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any.")] = UI_PORT,
    open_it: Annotated[bool, typer.Option("--open", help="Open the browser.")] = False,
) -> None:
    """Show your runs in a browser of this machine.

    The pages have states, curves, logs, reports and comparisons, and can stop and resume runs. They show the runs that
    `rayscribe list` shows without a service. The printed address works in one browser. A service has the same pages,
    for all of its users, at its own address.

    Example: rayscribe ui --open
    """
    from jobs.api.server.process import serve_ui  # noqa: PLC0415

    def show(url: str) -> None:
        typer.echo(f"your runs: {url}\nThe address works in one browser. Press Ctrl-C to end.")
        if open_it:
            typer.launch(url)

    serve_ui(port, show)


def growth_of(texts: Sequence[str], addresses: Sequence[str]) -> dict[str, dict[str, float]]:
    """Parses `GPU=16` and `GPU=16@http://b:8265`, by address.

    Raises:
        ConfigError: a text has another form, or names a cluster that is not served.
    """
    served = [address.rstrip("/") for address in addresses]
    growth: dict[str, dict[str, float]] = {}
    for text in texts:
        amount, _, url = text.partition("@")
        try:
            growth_of_one = read_growth(amount)
        except ConfigError:
            raise ConfigError(
                f"--grows-to {text}: write it as NAME=NUMBER or NAME=NUMBER@URL, e.g. --grows-to GPU=16"
            ) from None
        target = url.rstrip("/") or served[0]
        if target not in served:
            raise ConfigError(f"--grows-to {text}: {url} is not one of the clusters {', '.join(served)} (--address)")
        growth.setdefault(target, {}).update(growth_of_one)
    return growth


@tokens.command("add")
def add_token(
    name: Annotated[str, typer.Argument(help="Name of the user; runs submitted with the token are this user's.")],
    database: DatabaseOption = None,
) -> None:
    """Create a token and print it, once.

    Example: rayscribe token add ana
    """
    with _tokens_of(database) as found:
        typer.echo(found.add(name, time.time()))
    typer.echo(f"token of {name}; it is not shown again. Use: export RAYSCRIBE_TOKEN=…", err=True)


@tokens.command("list")
def list_tokens(database: DatabaseOption = None, json_output: JsonOption = False) -> None:
    """List users with a token; tokens are not shown.

    Example: rayscribe token list
    """
    with _tokens_of(database) as found:
        listed = found.all()
    if json_output:
        as_json(listed)
        return
    for item in listed:
        typer.echo(f"{item.name}  created {clock(item.created_s)}")


@tokens.command("revoke")
def revoke_token(
    name: Annotated[str, typer.Argument(help="User whose tokens are revoked.")], database: DatabaseOption = None
) -> None:
    """Revoke all tokens of a user, with immediate effect.

    Example: rayscribe token revoke ana
    """
    with _tokens_of(database) as found:
        found.revoke(name)
    typer.echo(f"tokens of {name} are revoked")


@contextmanager
def _tokens_of(database: str | None) -> "Iterator[Tokens]":
    from jobs.ledger import Ledger  # noqa: PLC0415

    with closing(Ledger.open(database or default_database())) as ledger:
        yield ledger.tokens
