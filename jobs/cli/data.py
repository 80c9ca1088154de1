"""rayscribe data: manifests of corpora as they are published."""

from pathlib import Path
from typing import Annotated

import typer

from trainers.config.wording import counted
from trainers.errors import ConfigError

data = typer.Typer(help="Make manifests of corpora as they are published.", no_args_is_help=True)


@data.callback()
def _group() -> None:
    """Make manifests of corpora as they are published."""


@data.command("common-voice")
def common_voice(  # noqa: PLR0913, PLR0917 -- one parameter per option
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Common Voice's folder, or its .tar.gz.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the manifests.", show_default=False)],
    language: Annotated[
        str | None, typer.Option(metavar="CODE", help="Of a source with several languages, which one: e.g. sr.")
    ] = None,
    train: Annotated[str, typer.Option(metavar="TABLES", help="Tables to train on, joined by +.")] = "train",
    validation: Annotated[str, typer.Option(metavar="TABLES", help="Those that choose the best model.")] = "dev",
    test: Annotated[str, typer.Option(metavar="TABLES", help="Those of the final score.")] = "test",
    accented_letters: Annotated[
        bool, typer.Option(help="Keep accents of Latin letters; SpeechBrain's recipe takes them off.")
    ] = True,
    max_characters: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Leave out clips with longer sentences.")
    ] = None,
    disjoint_speakers: Annotated[
        bool, typer.Option("--disjoint-speakers", help="Leave out of each split the speakers of a later one.")
    ] = False,
) -> None:
    """Write train.jsonl, validation.jsonl and test.jsonl of Common Voice, and say what was left out.

    Clips of a folder stay where they are; of an archive, those that the manifests name are unpacked next to them.

    Example: rayscribe data common-voice cv-corpus-21.0-2025-03-14-sr.tar.gz --out cv-sr

    Example: rayscribe data common-voice cv-corpus-21.0/sr --out cv-sr --train train+other --disjoint-speakers
    """
    # Imported here: pyarrow takes as long to load as all other commands.
    from trainers.data.sources.formats.common_voice import Rules  # noqa: PLC0415
    from trainers.data.sources.formats.common_voice_manifests import write_manifests  # noqa: PLC0415

    tables = {"train": train.split("+"), "validation": validation.split("+"), "test": test.split("+")}
    if repeated := [name for name in tables["train"] if name in (*tables["validation"], *tables["test"])]:
        raise ConfigError(f"--train {train}: {repeated[0]} also chooses or scores the model: leave it out")
    rules = Rules(accented_letters, max_characters)
    made = write_manifests(
        source, out, tables, language=language, rules=rules, disjoint_speakers=disjoint_speakers, log=typer.echo
    )
    for split, counts in made.counts.items():
        typer.echo(f"{split}: {counted(counts.kept, 'clip')} · {made.manifests[split]}")
        for line in counts.lines():
            typer.echo(f"{split}: {line}")
    for (one, other), count in made.shared.items():
        typer.echo(f"warning: {one} and {other} have {count} sentences in common")
