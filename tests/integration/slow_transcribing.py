"""`rayscribe transcribe` on the Ray at RAY_ADDRESS in small shards and slowly; a file says which process is at work."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
from ray.cloudpickle import register_pickle_by_value

from jobs.cli import main as rayscribe
from tests.integration.processes_at_work import AT_WORK
from trainers.data.sources.recording_readers import RecordingReader, Row
from trainers.errors import AudioError
from trainers.pipeline.on_ray import ray_engine as on_ray
from trainers.pipeline.transcription import transcription
from trainers.pipeline.transcription.transcriber import TranscribeTask
from trainers.pipeline.transcription.transcript_files import TranscriptionFolder

ROWS_PER_SHARD, READ_S = 4, 0.05


@dataclass(frozen=True)
class SlowReader:
    """Takes time for each recording.

    Attributes:
        reader: Reads the recordings.
        notes: Where a file is written for each process, named after it, while it reads.
    """

    reader: RecordingReader
    notes: Path

    def read(self, rows: Sequence[Row]) -> Iterator[bytes | AudioError]:
        """See `RecordingReader`."""
        at_work = self.notes / AT_WORK.format(os.getpid())
        at_work.touch()
        for recording in self.reader.read(rows):
            time.sleep(READ_S)
            yield recording
        at_work.unlink()


def main(arguments: Sequence[str]) -> int:
    """The arguments of `rayscribe transcribe`, after the folder of the notes."""
    notes, *words = arguments
    # Workers import nothing from the driver's folder.
    register_pickle_by_value(sys.modules[__name__])
    real = on_ray.transcribe_on_ray

    def slowly(
        blocks: Sequence[pa.Table], task: TranscribeTask, folder: TranscriptionFolder, num_workers: int | None
    ) -> Iterator[pa.Table]:
        slow = replace(task, reader=SlowReader(task.reader, Path(notes)))
        return real(blocks, slow, folder, num_workers)

    with (
        patch.object(on_ray, "transcribe_on_ray", slowly),
        patch.object(transcription, "ROWS_PER_SHARD", ROWS_PER_SHARD),
    ):
        return rayscribe(["transcribe", *words])
