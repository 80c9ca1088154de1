"""rayscribe report: writes a page about a run and its results, or about the content of a prepared set."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from jobs.cli.completion import complete_run
from jobs.cli.connect import ServiceOption, open_session
from jobs.cli.output import ForceOption, echo, write_file
from jobs.errors import NotFoundError
from jobs.service.run_folders import folder_of
from trainers.config.storage_location import is_url
from trainers.errors import ConfigError
from trainers.run_folder.layout import REPORT
from trainers.storage import Storage, open_storage


def report(
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Name of the run, or its folder or URL; or that of a prepared set.",
            autocompletion=complete_run,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there. Default: report.html in the folder.")
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            "--price-per-gpu-hour",
            metavar="PRICE",
            min=0,
            help="Show the cost at this price. Default: scaling.price_per_gpu_hour of the run.",
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    force: ForceOption = False,
    service: ServiceOption = None,
) -> None:
    """Write the page of a run: scores, curves, worst utterances, confusions, data, attempts and config.

    It is one file that needs no network and runs no script, of a run that has ended or still trains. A run writes it
    after each validation and when it has finished. Recordings of the worst utterances and speakers are in it where the
    prepared set is on a disk of this machine. The page of a prepared set has hours, durations, characters and the
    quarantine by reason.

    Example: rayscribe report whisper-sr --open

    Example: rayscribe report s3://bucket/runs/whisper-sr --out whisper-sr.html
    """
    storage, make_html = _page_of(run_id, price, service)
    if open_it and out is None and is_url(storage.url()):
        raise ConfigError(f"--open: {storage.url()} is not a folder of this machine: name a file (--out FILE)")
    if out is None:
        storage.write_bytes(REPORT, make_html().encode())
        written = storage.url(REPORT)
    else:
        write_file(out, make_html(), "--out", force=force)
        written = str(out.resolve())
    echo(f"written: {written}")
    if open_it:
        typer.launch(Path(written).as_uri())


def _page_of(text: str, price: float | None, service: str | None) -> tuple[Storage, Callable[[], str]]:
    """Returns the folder of a run or of a prepared set, and a function that renders its page."""
    # Imported here: other commands do not need charts, and start faster without.
    from trainers.scoring.report.data_section import prepared_at, prepared_html  # noqa: PLC0415
    from trainers.scoring.report.page import report_html  # noqa: PLC0415

    try:
        with open_session(service) as session:
            folder = folder_of(session.runs.run(text))
    except NotFoundError:
        is_folder = is_url(text) or Path(text).is_dir()
        place = text.rstrip("/") if is_url(text) else str(Path(text).resolve())
        prepared = prepared_at(open_storage(place)) if is_folder else None
        if prepared is None:
            raise
        if price is not None:
            raise ConfigError(
                f"--price-per-gpu-hour: {text} is a prepared set, which costs no GPU: leave it out"
            ) from None
        return prepared.storage, partial(prepared_html, prepared)
    return folder.storage, partial(report_html, folder, price)
