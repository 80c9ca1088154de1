"""rayscribe score: error rates of any system's output."""

from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.cli.output import ForceOption, as_json, warn, write_file
from trainers.storage.json_files import to_jsonl


def score(
    hypotheses: Annotated[
        Path, typer.Argument(metavar="HYPOTHESES", help="What was recognized: a .txt, .trn or .jsonl file.")
    ],
    reference: Annotated[
        Path, typer.Option(metavar="REFERENCES", help="The transcripts: a file of the same kind.", show_default=False)
    ],
    normalizer: Annotated[
        str,
        typer.Option(metavar="NAME", help="Done to both texts before: none, basic, whisper_basic or whisper_english."),
    ] = "basic",
    language: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Of the speech, e.g. th: says whether WER or CER ranks, and is shown first."),
    ] = None,
    details: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a line of JSON for each utterance there.")
    ] = None,
    force: ForceOption = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score the output of any recognizer against references: WER, CER and SER in percent, with their counts.

    Two .txt files are compared line by line. Files with ids are compared by id: .trn (`the words (id)`), and .jsonl
    with `id` and `hypothesis` (or `pred_text`, `text`) and `reference` (or `text`) in each line, as our own
    evaluation/test.jsonl has them. Exits with code 3 where the numbers of lines or the ids differ.

    Example: rayscribe score hypotheses.txt --reference references.txt --language th

    Example: rayscribe score hypotheses.trn --reference references.trn --normalizer whisper_english --json

    Example: rayscribe score run/evaluation/test.jsonl --reference run/evaluation/test.jsonl --details edits.jsonl
    """
    # Imported here: other commands need no aligner, and start faster without.
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
