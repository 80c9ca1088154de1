"""rayscribe export, push, average, report: what is made of the models and the results of runs."""

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.cli.completion import run_argument
from jobs.cli.connect import RunName, ServiceOption, open_session
from jobs.cli.output import ForceOption, as_json, echo, percent, print_table, write_file
from jobs.cli.train import Overrides, model_of
from jobs.errors import NotFoundError
from jobs.service.run_folders import folder_of
from trainers.config.overrides import apply_overrides
from trainers.config.parts.run_part import HubPart
from trainers.config.storage_location import in_home, is_url
from trainers.config.validation import refuse, validated
from trainers.config.wording import counted, format_bytes
from trainers.distributed.console import opened_screen, show
from trainers.distributed.console.events import Stage
from trainers.distributed.signals import exit_code_of
from trainers.errors import ConfigError, ExportError
from trainers.pipeline.export.export_request import KNOWN_EXPORTS, TOLERANCE, ExportRequest
from trainers.run_folder.acceptance import refuse_not_accepted
from trainers.run_folder.layout import REPORT
from trainers.storage import Storage, open_storage

if TYPE_CHECKING:
    # Imports torch.
    from trainers.pipeline.export.average import Averaged
    from trainers.pipeline.export.export_run import Exported


AllowWorse = Annotated[
    bool,
    typer.Option("--allow-worse", help="Continue even if the training made the model worse; exits with 17 otherwise."),
]


def export(
    run_id: RunName,
    to: Annotated[
        str, typer.Option("--to", metavar="FORMAT,…", help=f"Formats, separated by commas: {', '.join(KNOWN_EXPORTS)}.")
    ],
    output: Annotated[str, typer.Option(metavar="FOLDER", help="Folder to write to; each format gets a subfolder.")],
    tolerance: Annotated[
        float,
        typer.Option(metavar="POINTS", help="Allowed difference of error rates from the run's, in percentage points."),
    ] = TOLERANCE,
    force: Annotated[bool, typer.Option("--force", help="Replace formats that FOLDER already has.")] = False,
    allow_worse: AllowWorse = False,
    service: ServiceOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON; messages go to standard error.")] = False,
) -> None:
    """Export a run's model to other formats, and score each.

    Each format has its own converter, which runs on this machine, and its own runtime, which recognizes the run's test
    split; texts are normalized and scored like the run's. A format is not kept if its error rate differs from the run's
    by more than the tolerance, or if it cannot be converted; the exit code is then 16. hf is for transformers, and
    needs no further packages; the others need extras, e.g. pip install 'rayscribe[ctranslate2]'. For each format that
    is kept, FOLDER/FORMAT/evaluation/ has the score, which `rayscribe compare` reads.

    Example: rayscribe export whisper-sr --to hf,ctranslate2 --output exported

    Example: rayscribe export s3://bucket/runs/ctc-sr --to onnx,openvino --output ctc-sr --tolerance 0.1 --json
    """
    request = ExportRequest([name.strip() for name in to.split(",") if name.strip()], output, tolerance, force)
    # Checked before slow imports.
    request.exports()
    with open_session(service) as session:
        folder = folder_of(session.runs.run(run_id))
    if not allow_worse:
        refuse_not_accepted(folder)
    found: list[Exported] = []

    def work() -> int:
        show(Stage("imports", "loading torch and transformers"))
        from trainers.pipeline.export.export_run import export_run  # noqa: PLC0415

        found.append(export_run(folder, request))
        return 0

    with opened_screen(to_stderr=True):
        code = exit_code_of(work)
    if not found:
        raise typer.Exit(code)
    exported = found[0]
    if json_output:
        as_json(asdict(exported))
    else:
        _show(exported)
    if exported.problems:
        reasons = "".join(f"\n{name}: {problem}" for name, problem in exported.problems.items())
        number = counted(len(exported.problems), "format", "is", "are")
        raise ExportError(f"{number} not kept, of {len(exported.outcomes)}:{reasons}")


def _show(exported: "Exported") -> None:
    rows = [("the run", percent(exported.own["wer"]), percent(exported.own["cer"]), "", "", "", exported.run)]
    for each in exported.outcomes:
        rates = each.rates or {}
        rows.append(
            (
                each.format,
                percent(rates.get("wer")),
                percent(rates.get("cer")),
                "-" if each.difference is None else f"{each.difference:+.2f}",
                "-" if each.size_bytes is None else format_bytes(each.size_bytes),
                "-" if each.real_time_factor is None else f"{each.real_time_factor:.3f}",
                each.folder or "not kept",
            )
        )
    print_table(("FORMAT", "WER", "CER", "DIFFERENCE", "SIZE", "REAL-TIME FACTOR", "FOLDER"), rows)


def push(
    run_id: RunName,
    model_id: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME", help="The repository. Default: hub.model_id of its recipe, else the run's name."
        ),
    ] = None,
    private: Annotated[
        bool | None,
        typer.Option("--private/--public", help="Visibility of a new repository. Default: hub.private."),
    ] = None,
    allow_worse: AllowWorse = False,
    service: ServiceOption = None,
) -> None:
    """Push a run's model to the Hub, with its model card.

    The Hub is Hugging Face's. A run with hub.push does this itself at its end; this command does it later, or on any
    machine that can read the run folder. The token is HF_TOKEN, or that of `hf auth login`. If the command is repeated,
    files that the Hub has are not sent again.

    Example: rayscribe push whisper-sr --model-id ana/whisper-sr --private

    Example: rayscribe push s3://bucket/runs/whisper-sr
    """
    # Imported here so that other commands start faster.
    from trainers.run_folder.hub_push import push_run  # noqa: PLC0415

    with open_session(service) as session:
        run = session.runs.run(run_id)
        folder = folder_of(run)
    if not allow_worse:
        refuse_not_accepted(folder)
    given = {"model_id": model_id, "private": private}
    changes = [((name,), value) for name, value in given.items() if value is not None]
    part, problems = validated(HubPart, apply_overrides(run.config.get("hub") or {}, changes))
    refuse(problems, "hub")
    assert part is not None
    done = push_run(folder, part)
    echo(f"pushed: {done.repository}, commit {done.commit}")


def average(
    models: Annotated[
        list[str],
        run_argument(
            "Runs by name, folder or URL; folders of models; ids of the Hub. A single run stands for its checkpoints.",
            "RUN…",
        ),
    ],
    output: Annotated[str, typer.Option(metavar="FOLDER", help="New folder for the model.")],
    shares: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE,…", help="The share of each model, which sum to 1, e.g. 0.3,0.7. Default: equal shares."
        ),
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    service: ServiceOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON; messages go to standard error.")] = False,
) -> None:
    """Average the weights of models, and write the model.

    The models must have been trained from the same weights. An average of several runs is often better than each of
    them; one of a run with the weights that it began with keeps more of what they could do. The average is not scored:
    use `rayscribe evaluate` with --model. FOLDER/average.json has the models and their shares.

    Example: rayscribe average whisper-sr-1 whisper-sr-2 whisper-sr-3 --output averaged

    Example: rayscribe average openai/whisper-tiny s3://bucket/runs/whisper-sr --shares 0.4,0.6 --output averaged
    """
    given = _shares(shares, len(models))
    target = in_home(output)
    if is_url(output) or target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ConfigError(f"--output {output}: name a folder of this machine that is empty, or does not exist yet")
    located = [model_of(each, service, "RUN") for each in models]
    found: list[Averaged] = []

    def work() -> int:
        show(Stage("imports", "loading torch and transformers"))
        from trainers.pipeline.export import average as averaging  # noqa: PLC0415

        found.append(averaging.average(located, output, given, overrides))
        return 0

    with opened_screen(to_stderr=True):
        code = exit_code_of(work)
    if not found:
        raise typer.Exit(code)
    if json_output:
        as_json(asdict(found[0]))
    else:
        print_table(("SHARE", "MODEL"), [(f"{share:g}", model) for model, share in found[0].models.items()])
        echo(f"written: {found[0].folder}")


def _shares(text: str | None, count: int) -> list[float] | None:
    if text is None:
        return None
    try:
        shares = [float(each) for each in text.split(",")]
    except ValueError:
        raise ConfigError(f"--shares {text}: numbers with commas between them, e.g. 0.3,0.7") from None
    if len(shares) != count or count == 1:
        raise ConfigError(f"--shares {text}: one share for each RUN, of which there are {count}")
    if min(shares) <= 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise ConfigError(f"--shares {text}: give shares above 0 that sum to 1; these sum to {sum(shares):g}")
    return shares


def report(
    run_id: Annotated[str, run_argument("Name of the run, or its folder or URL; or that of a prepared set.")],
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
    """Write the report of a run: scores, curves, utterances.

    It also has confusions, data, attempts and config. The report is one file that needs no network and runs no script;
    the run may still be training. A run writes it after each validation and at its end. Recordings of the worst
    utterances and speakers are included if the prepared set is on a disk of this machine. The report of a prepared
    set has hours, durations, characters and the quarantine by reason.

    Example: rayscribe report whisper-sr --open

    Example: rayscribe report s3://bucket/runs/whisper-sr --out whisper-sr.html
    """
    storage, make_html = _page_of(run_id, price, service)
    if open_it and out is None and is_url(storage.url()):
        raise ConfigError(
            f"--open: the page would be written to {storage.url()}, which a browser cannot open: add --out FILE to "
            "write it on this machine"
        )
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
    # Imported here, since other commands do not need charts, and start faster without them.
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
                f"--price-per-gpu-hour: {text} is a prepared set, which uses no GPU: leave it out"
            ) from None
        return prepared.storage, partial(prepared_html, prepared)
    return folder.storage, partial(report_html, folder, price)
