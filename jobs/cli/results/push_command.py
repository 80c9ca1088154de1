"""rayscribe push: the model of a run that has finished, to the Hugging Face Hub."""

from typing import Annotated

import typer

from jobs.cli.completion import complete_run
from jobs.cli.connect import ServiceOption, open_session
from jobs.cli.output import echo
from jobs.service.run_folders import folder_of
from trainers.config.overrides import apply_overrides
from trainers.config.parts.hub_part import HubPart
from trainers.config.validation import refuse, validated


def push(
    run_id: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Name of the run, or its folder or URL.", autocompletion=complete_run),
    ],
    model_id: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME", help="The repository. Default: hub.model_id of its recipe, else the run's name."
        ),
    ] = None,
    private: Annotated[
        bool | None,
        typer.Option("--private/--public", help="What a repository is that is made. Default: hub.private."),
    ] = None,
    service: ServiceOption = None,
) -> None:
    """Push a finished run's model to the Hugging Face Hub, with its model card.

    A run with hub.push does so itself at its end; this does it later, or elsewhere, from wherever the run folder can be
    read. The token is HF_TOKEN, or that of a login (hf auth login). It may be repeated: what the Hub has is not sent
    again.

    Example: rayscribe push whisper-sr --model-id ana/whisper-sr --private

    Example: rayscribe push s3://bucket/runs/whisper-sr
    """
    # Imported here: other commands start faster without.
    from trainers.run_folder.hub.push import push_run  # noqa: PLC0415

    with open_session(service) as session:
        run = session.runs.run(run_id)
        folder = folder_of(run)
    given = {"model_id": model_id, "private": private}
    changes = [((name,), value) for name, value in given.items() if value is not None]
    part, problems = validated(HubPart, apply_overrides(run.config.get("hub") or {}, changes))
    refuse(problems, "hub")
    assert part is not None
    done = push_run(folder, part)
    echo(f"pushed: {done.repository}, commit {done.commit}")
