"""rayscribe demo: starts Ray on this machine, submits the smallest recipe as a job, and follows it to its end."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from jobs.addresses import cluster_address
from jobs.cli import cluster_commands
from jobs.cli.connect import open_session
from jobs.cli.follow import wait_for_end
from jobs.cli.output import echo
from jobs.cli.submit import Submission, refuse_taken_name, submit_spec
from jobs.cli.train import Overrides
from jobs.errors import NotFoundError
from jobs.submission.job_spec import load_spec
from runtime_env.tree import ENTRY
from trainers.distributed.console import opened_screen, show
from trainers.distributed.console.events import Stage

RECIPE = "jobs/specs/whisper_micro.yaml"
CLUSTER = "demo"
LOGICAL_CPUS = 4


def demo(
    overrides: Overrides = [],  # noqa: B006
    keep_ray: Annotated[
        bool, typer.Option("--keep-ray", help="Keep Ray running, with its dashboard, until you end it.")
    ] = False,
) -> None:
    """Train and score a tiny recognizer here, as a Ray job.

    Afterwards `rayscribe list` shows the run, and its folder is in runs/.

    Example: rayscribe demo --keep-ray
    """
    repository, runs = Path(__file__).resolve().parents[2], Path.cwd() / "runs"
    os.environ.pop("RAYSCRIBE_SERVICE", None)
    chosen = [f"run.storage_path={runs}", *overrides, f"job.address={cluster_address(CLUSTER)}"]
    with opened_screen(), tempfile.TemporaryDirectory() as empty:
        # Packages this repository, if the command runs from one; never the user's folder.
        here = repository if (repository / ENTRY).is_file() else Path(empty)
        spec = load_spec(Path(RECIPE), chosen, here=here, now=datetime.now(UTC), is_local=lambda address: True)
        refuse_taken_name(str(spec.config.run.name), None)
        with _own_cluster(keep_ray):
            try:
                submit_spec(spec, Submission(follow=True, goes_on=False))
            finally:
                _stop(str(spec.config.run.name))


@contextmanager
def _own_cluster(keep: bool) -> Iterator[None]:
    """Starts Ray, which ends with the block or with this process, unless `keep` is set or it was already running."""
    from jobs.clusters.managed import local_cluster  # noqa: PLC0415

    record, started = local_cluster.up(
        CLUSTER,
        num_cpus=LOGICAL_CPUS,
        dashboard_port=None,
        idle_stop_minutes=None,
        say=lambda line: show(Stage("Ray", line)),
        outlives_us=keep,
    )
    cluster_commands.print_dashboard(record, record.dashboard or "")
    try:
        yield
    finally:
        if keep or not started:
            echo(f"Ray keeps running: rayscribe cluster dashboard {CLUSTER}; end it: rayscribe cluster down {CLUSTER}")
        else:
            cluster_commands.down(CLUSTER, force=True, no_logs=True)


def _stop(name: str) -> None:
    """Stops the run if it was not followed to its end, so that it does not wait for a cluster that no longer exists."""
    with open_session(None) as session:
        try:
            if session.operations.run(name).state.ended:
                return
        except NotFoundError:
            return
        session.operations.stop(name)
        echo(f"{name}: {wait_for_end(session, name).reason}", err=True)
        up = f"rayscribe cluster up --local --name {CLUSTER}"
        echo(f"continue it: {up} && rayscribe resume {name} --follow", err=True)
