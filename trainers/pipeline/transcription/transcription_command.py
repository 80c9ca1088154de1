"""Implements `rayscribe transcribe` and `rayscribe.transcribe`, with Ray or without. Imports heavy libraries lazily."""

import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from trainers.config.secrets import resolve_secrets
from trainers.config.wording import counted
from trainers.distributed.console import opened_screen, show
from trainers.distributed.console.events import Finished, Stage
from trainers.distributed.machine import wait_asleep
from trainers.distributed.signals import STOP_SIGNAL, exit_code_of
from trainers.errors import Interruption, QuarantinedError
from trainers.models.sources.run_models import address_of, find_model
from trainers.pipeline.transcription.transcription_request import TranscriptionRequest, transcription_config
from trainers.run_folder.acceptance import why_not_accepted
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage

if TYPE_CHECKING:
    # Imports torch.
    from trainers.pipeline.transcription.transcription import TranscriptionResult

ARGUMENT = "MODEL"
# Number of recordings that a message names.
SHOWN_PROBLEMS = 3


def run_transcription(request: TranscriptionRequest) -> int:
    """Transcribes, and prints the result unless it is written to a file or folder; returns an exit code."""

    def work() -> int:
        try:
            result = transcription_of(request)
        except Interruption as stopped:
            if request.out is None:
                stopped.left = "no transcript is kept; with a file or folder (--out), the same command would continue"
            raise
        if request.out is None:
            sys.stdout.write(result.text)
        if result.quarantined:
            shown = [f"{name}: {reason}" for name, reason in [*result.quarantined.items()][:SHOWN_PROBLEMS]]
            more = f"; all are in {result.folder}/quarantine.jsonl" if result.folder is not None else ""
            raise QuarantinedError(
                f"{len(result.quarantined)} of {counted(result.recordings, 'recording')} could not be transcribed: "
                f"{'; '.join(shown)}{more}"
            )
        return 0

    wait_asleep()
    with opened_screen(as_json=request.json, to_stderr=not request.json):
        return exit_code_of(work)


def transcribe_request(request: TranscriptionRequest) -> "TranscriptionResult":
    """Transcribes for a caller in Python, see `transcription_of`."""
    STOP_SIGNAL.reset()
    with STOP_SIGNAL.on_signals():
        return transcription_of(request)


def transcription_of(request: TranscriptionRequest) -> "TranscriptionResult":
    """Transcribes with Ray or without; recordings that cannot be read are quarantined, and do not raise an error."""
    request.check()
    resolve_secrets(os.environ)
    config = transcription_config(request)
    # Before torch is loaded, so that errors in the arguments are reported in a second or two.
    model = find_model(request.model, config.run.storage_options, ARGUMENT)
    address, options = address_of(request.model), config.run.storage_options
    problem = why_not_accepted(RunFolder(open_storage(address, options))) if address is not None else None
    if problem is not None:
        show(f"warning: {problem}")
    from trainers.pipeline.transcription.input_rows import is_manifest, open_rows, refuse_missing  # noqa: PLC0415

    rows = open_rows(request.inputs, config.data, config.run.storage_options)
    request.check_count(len(rows.table))
    large = request.folder is not None and any(map(is_manifest, request.inputs))
    on_ray = request.ray if request.ray is not None else large or request.address is not None
    if not on_ray:
        refuse_missing(rows.table["audio"].to_pylist())
    show(Stage("imports", "loading torch and transformers"))
    from trainers.distributed.root_cause import converting_errors  # noqa: PLC0415
    from trainers.pipeline.transcription.transcription import transcribe, transcribe_in_process  # noqa: PLC0415

    if not on_ray:
        with converting_errors():
            result = transcribe(request, config, model, rows, transcribe_in_process)
    else:
        from trainers.distributed.ray_connection import connected  # noqa: PLC0415

        # Installed again inside, since Ray replaces the handler of SIGTERM when it connects.
        with connected(config, request.address), STOP_SIGNAL.on_signals():
            from trainers.pipeline.on_ray.ray_engine import transcribe_on_ray  # noqa: PLC0415

            run = partial(transcribe_on_ray, num_workers=request.num_workers)
            result = transcribe(request, config, model, rows, run)
    show(Finished(result.headline, result.folder or request.out or ""))
    return result
