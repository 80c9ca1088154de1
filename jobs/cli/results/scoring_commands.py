"""rayscribe compare, score: compares recognizers, and computes error rates of any system's output."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.cli.completion import run_argument
from jobs.cli.connect import CommandSession, JsonOption, ServiceOption, open_session
from jobs.cli.output import ForceOption, as_json, echo, percent, print_table, warn, write_file
from jobs.errors import NotFoundError
from jobs.service.run_folders import folder_of
from trainers.config.storage_location import in_home, is_url
from trainers.config.wording import both_contexts, counted
from trainers.errors import ConfigError
from trainers.run_folder.layout import EVALUATION, RunFolder
from trainers.storage import open_storage
from trainers.storage.json_files import to_jsonl

if TYPE_CHECKING:
    from trainers.scoring.comparison.bootstrap import Interval
    from trainers.scoring.comparison.comparison import Comparison, Paired
    from trainers.scoring.comparison.systems import System

LONGEST_NAME = LONGEST_VALUE = 28

Names = Annotated[
    list[str],
    run_argument(
        "Runs by name, folder or URL; folders of `rayscribe evaluate`; files of any system's output.", "SYSTEM…"
    ),
]
Split = Annotated[str, typer.Option(metavar="SPLIT", help="Split whose scores are compared: test or validation.")]
Reference = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The transcripts, if no run has them.", show_default=False)
]
NormalizerName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Normalizer to score all again with. Default: that of the runs."),
]
MetricName = Annotated[
    str | None, typer.Option(metavar="NAME", help="wer or cer. Default: depends on the runs' language.")
]
Details = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a line of JSON for each utterance.")]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write an HTML page with the utterances that differ most.")
]


def compare(  # noqa: PLR0913, PLR0917 -- one parameter per option
    names: Names,
    split: Split = "test",
    reference: Reference = None,
    normalizer: NormalizerName = None,
    metric: MetricName = None,
    details: Details = None,
    html: Html = None,
    force: ForceOption = False,
    service: ServiceOption = None,
    json_output: JsonOption = False,
) -> None:
    """Compare recognizers on the same utterances.

    Prints scores, paired tests, wins and losses, and differences of the recipes. Each system is compared with the
    first. The test is NIST's matched pairs sentence-segment word error test (MAPSSWE, as sc_stats computes it);
    intervals are 95% bootstrap intervals over utterances. A file has hypotheses by utterance id: .jsonl or .csv with
    `id` and `hypothesis` (or `pred_text`, `text`), or .trn (`the words (id)`); the references are those of the runs.
    Exits with code 3 if the systems were not scored on the same utterances and references, and with code 2 if
    their normalizers differ.

    Example: rayscribe compare whisper-sr whisper-sr-lora --html compared.html

    Example: rayscribe compare whisper-sr s3://bucket/runs/ctc-sr other_system.csv --details utterances.jsonl

    Example: rayscribe compare a.trn b.trn --reference references.trn --normalizer whisper_english --json
    """
    # Imported here, since other commands do not need an aligner, and start faster without it.
    from trainers.scoring.comparison.comparison import compare_named  # noqa: PLC0415
    from trainers.scoring.comparison.systems import differing_settings, language_of  # noqa: PLC0415
    from trainers.scoring.normalizers import hidden_marks  # noqa: PLC0415

    if len(names) < 2 or len({*names}) < len(names):
        raise ConfigError(f"compare {' '.join(names)}: name at least two systems, each once")
    systems = _opened(names, split, reference, service)
    found = compare_named(systems, normalizer, metric)
    references = next(system.references for system in systems if system.references is not None)
    warn(hidden_marks(found.normalizer, references.values(), language_of(systems)))
    settings = differing_settings(systems)
    if details is not None:
        write_file(details, to_jsonl(found.utterances(), str(details)), "--details", force=force)
    if html is not None:
        from trainers.scoring.report.comparison_page import comparison_html  # noqa: PLC0415

        write_file(html, comparison_html(found, settings, split), "--html", force=force)
    if json_output:
        as_json({**found.to_json_dict(), "split": split, "differing_settings": settings})
    else:
        _show(found, settings, systems)


def _opened(names: Sequence[str], split: str, reference: Path | None, service: str | None) -> "list[System]":
    from trainers.scoring.comparison.systems import System  # noqa: PLC0415

    opened = {name: System.of_file(_shown(name, names), in_home(name), reference) for name in names if _is_file(name)}
    if len(opened) < len(names):
        with open_session(service) as session:
            for name in names:
                if name not in opened:
                    opened[name] = System.of_folder(_shown(name, names), _folder(session, name), split)
    return [opened[name] for name in names]


def _is_file(name: str) -> bool:
    from trainers.scoring.transcripts import SUFFIXES  # noqa: PLC0415

    path = in_home(name)
    return not is_url(name) and path.suffix.lower() in SUFFIXES and path.is_file()


def _shown(name: str, names: Sequence[str]) -> str:
    """Returns the last part of a path or URL if no other name has the same last part, otherwise the complete name."""
    last = _last(name)
    return last if [_last(other) for other in names].count(last) == 1 else name


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _folder(session: CommandSession, name: str) -> RunFolder:
    try:
        return folder_of(session.runs.run(name))
    except NotFoundError:
        url = name.rstrip("/") if is_url(name) else str(in_home(name).absolute())
        folder = RunFolder(open_storage(url, confined=True)) if is_url(name) or Path(url).is_dir() else None
        if folder is None or not folder.storage.list_files(EVALUATION):
            raise
        return folder


def _show(found: "Comparison", settings: dict[str, list[Any]], systems: Sequence["System"]) -> None:
    length = found.systems[0].counts.reference_length
    echo(f"{counted(len(found.ids), 'utterance')}, {length:,} {found.units} · normalizer {found.normalizer}")
    by_name = {pair.name: pair for pair in found.paired}
    rows = [
        (
            _cut(score.name, LONGEST_NAME),
            percent(score.rate),
            _bounds(score.interval),
            *(_cells(by_name[score.name]) if score.name in by_name else ("-",) * 5),
        )
        for score in found.systems
    ]
    head = ("SYSTEM", found.metric.upper(), "95%", "DIFFERENCE", "95%", "P", "BETTER", "WORSE")
    print_table(head, rows)
    for score in found.systems:
        if score.rate is not None and score.full_context_rate is not None:
            both = both_contexts(score.rate, score.full_context_rate)
            echo(f"{score.name}: {found.metric.upper()} {both}; the comparison uses the short context")
    for pair in found.paired:
        echo(pair.verdict(found.systems[0].name, found.units))
    if settings:
        echo("what differs:")
        fields = ("FIELD", *(_cut(system.name, LONGEST_NAME) for system in systems))
        values = [(name, *(_cut(value, LONGEST_VALUE) for value in of)) for name, of in settings.items()]
        print_table(fields, values)


def _cells(pair: "Paired") -> tuple[str, ...]:
    difference = "-" if pair.difference is None else f"{pair.difference:+.2f}"
    return difference, _bounds(pair.interval, "+"), pair.test.shown_p, str(pair.wins), str(pair.losses)


def _bounds(found: "Interval | None", sign: str = "") -> str:
    return "-" if found is None else f"{found.low:{sign}.2f} … {found.high:{sign}.2f}"


def _cut(value: Any, longest: int) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def score(
    hypotheses: Annotated[
        Path, typer.Argument(metavar="HYPOTHESES", help="The recognized texts: a .txt, .trn or .jsonl file.")
    ],
    reference: Annotated[
        Path, typer.Option(metavar="REFERENCES", help="The transcripts: a file of the same kind.", show_default=False)
    ],
    normalizer: Annotated[
        str,
        typer.Option(metavar="NAME", help="Normalizer of both: none, basic, whisper_basic or whisper_english."),
    ] = "basic",
    language: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Language, e.g. th; decides whether WER or CER ranks and is shown first."),
    ] = None,
    details: Details = None,
    force: ForceOption = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score the output of any recognizer: WER, CER and SER.

    The rates are in percent, with their counts. Two .txt files are compared line by line. Files with ids are compared
    by id: .trn (`the words (id)`), and .jsonl with `id` and `hypothesis` (or `pred_text`, `text`) and `reference` (or
    `text`) in each line, as our own evaluation/test.jsonl has them. Exits with code 3 if the numbers of lines or the
    ids differ.

    Example: rayscribe score hypotheses.txt --reference references.txt --language th

    Example: rayscribe score hypotheses.trn --reference references.trn --normalizer whisper_english --json

    Example: rayscribe score run/evaluation/test.jsonl --reference run/evaluation/test.jsonl --details edits.jsonl
    """
    # Imported here, since other commands do not need an aligner, and start faster without it.
    from trainers.scoring.error_rate import total  # noqa: PLC0415
    from trainers.scoring.normalizers import hidden_marks, normalizer_named  # noqa: PLC0415
    from trainers.scoring.ranking import ranking_rate, score_lines  # noqa: PLC0415
    from trainers.scoring.transcripts import read_hypotheses, read_references, score_transcripts  # noqa: PLC0415

    chosen = normalizer_named(normalizer)
    recognized, references = read_hypotheses(hypotheses), read_references(reference)
    scores = score_transcripts(recognized, references, chosen)
    warn(hidden_marks(chosen, references.texts.values(), language))
    totals: dict[str, Any] = {**total(scores, utterances=len(scores)).to_json_dict(), **chosen.to_json_dict()}
    if details is not None:
        content = to_jsonl([item.to_json_dict() for item in scores], str(details))
        write_file(details, content, "--details", force=force)
    if json_output:
        as_json({"total": totals, "language": language, "ranked_by": ranking_rate(language)})
        return
    for line in score_lines(totals, language):
        typer.echo(line)
