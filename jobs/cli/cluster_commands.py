"""rayscribe cluster: the clusters that runs are submitted to."""

import typer

from jobs.cli import cluster_files

cluster = typer.Typer(help="Start, watch and end clusters.", no_args_is_help=True, rich_markup_mode=None)
cluster.command("render")(cluster_files.render)
