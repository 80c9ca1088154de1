"""rayscribe transcribe: transcribes recordings with a trained model."""

from typing import Annotated

import typer

from jobs.cli.completion import run_argument
from jobs.cli.connect import ServiceOption
from jobs.cli.train import Address, Cluster, JsonLines, Overrides, joined, model_of
from trainers.pipeline.transcription.transcription_command import run_transcription
from trainers.pipeline.transcription.transcription_request import TranscriptionRequest

Model = Annotated[
    str,
    run_argument("A run, by its name, folder or URL; a folder with a model; or an id of the Hub.", "MODEL"),
]
Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILES…", help="Recordings, folders of them, or one manifest (.csv, .tsv, .jsonl, FORMAT:…)."
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|FOLDER|URL",
        help="A file with a format's extension, for one recording (.jsonl for any number); or a folder or bucket. "
        "Default: standard output.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="txt, srt, vtt or jsonl, which has all details. Default: by the file's extension; txt on standard output; "
        "jsonl in a folder, which always gets jsonl too.",
    ),
]
MaxSegment = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        help="Longer recordings are split at pauses into segments of at most this length. Default: the longest that "
        "the model supports, at most 30.",
    ),
]
Pause = Annotated[float, typer.Option(metavar="S", help="A pause of this length separates two segments.")]
NoWords = Annotated[bool, typer.Option("--no-words", help="Leave out word timestamps, which take a little longer.")]
WithoutRay = Annotated[bool, typer.Option("--no-ray", help="Transcribe a manifest in this process as well.")]
NumWorkers = Annotated[
    int | None,
    typer.Option(metavar="N", help="Processes on Ray, one per GPU, or per CPU without GPUs. Default: all that fit."),
]


def transcribe(  # noqa: PLR0913, PLR0917 -- one parameter per option
    model: Model,
    files: Files,
    out: Out = None,
    format_: Format = None,
    max_segment_s: MaxSegment = None,
    pause_s: Pause = 0.5,
    no_words: NoWords = False,
    overrides: Overrides = [],  # noqa: B006
    address: Address = None,
    cluster: Cluster = None,
    num_workers: NumWorkers = None,
    no_ray: WithoutRay = False,
    service: ServiceOption = None,
    json_lines: JsonLines = False,
) -> None:
    """Transcribe recordings with a trained model.

    Recordings are transcribed in this process, a manifest on a cluster. A run's model is decoded as in its recipe and
    its scores. Recordings that are too long for the model are split at pauses. A manifest needs no transcripts; with a
    folder as --out it is transcribed on Ray, 32 rows at a time, and each row is in transcripts/part-*.jsonl once. With
    a folder or file, repeat the command with the same model to continue a stopped one. Messages go to standard error.
    Recordings that cannot be read are skipped and listed, and the exit code is then 15.

    Example: rayscribe transcribe whisper-digits talk.mp3

    Example: rayscribe transcribe ~/ray_results/sr interview.wav --out interview.srt

    Example: rayscribe transcribe sr calls.csv --out s3://bucket/transcripts --address head:6379
    """
    request = TranscriptionRequest(
        model_of(model, service, "MODEL"),
        files,
        overrides,
        out=out,
        format=format_,
        max_segment_s=max_segment_s,
        pause_s=pause_s,
        words=not no_words,
        ray=False if no_ray else None,
        address=joined(address, cluster),
        num_workers=num_workers,
        json=json_lines,
    )
    raise typer.Exit(run_transcription(request))
