"""rayscribe report: a page that shows what a run was, is and came to."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.cli.completion import complete_run
from jobs.cli.connect import ServiceOption, open_session
from jobs.cli.output import ForceOption, echo, write_file
from jobs.service.run_folders import folder_of
from trainers.config.storage_location import is_url
from trainers.errors import ConfigError


def report(
    run_id: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Name of the run, or its folder or URL.", autocompletion=complete_run),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there. Default: report.html in the run folder.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    force: ForceOption = False,
    service: ServiceOption = None,
) -> None:
    """Write the page of a run: scores, curves, worst utterances, confusions, data, attempts and config.

    It is one file that needs no network and runs no script, of a run that has ended or still trains. A run writes it
    when it has finished. Recordings of the worst utterances and speakers are in it where the prepared set is on a disk
    of this machine.

    Example: rayscribe report whisper-sr --open

    Example: rayscribe report s3://bucket/runs/whisper-sr --out whisper-sr.html
    """
    # Imported here: other commands draw nothing, and start faster without.
    from trainers.scoring.report.page import REPORT, report_html, write_report  # noqa: PLC0415

    with open_session(service) as session:
        folder = folder_of(session.runs.run(run_id))
    if open_it and out is None and is_url(folder.url):
        raise ConfigError(f"--open: {folder.url} is not a folder of this machine: name a file (--out FILE)")
    if out is None:
        write_report(folder)
        written = folder.storage.url(REPORT)
    else:
        write_file(out, report_html(folder), "--out", force=force)
        written = str(out.resolve())
    echo(f"written: {written}")
    if open_it:
        typer.launch(Path(written).as_uri())
