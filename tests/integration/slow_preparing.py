"""Prepares a manifest on the Ray at RAY_ADDRESS in small shards and slowly, and notes which shards are begun."""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
from ray.cloudpickle import register_pickle_by_value

from tests.integration.processes_at_work import AT_WORK
from tests.trainers.synthetic import config
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import PrepareOptions, Runner, ShardTask, prepare, run_on_ray
from trainers.data.prepared_set import PreparedSet, shard_name
from trainers.data.sources.known_sources import open_sources
from trainers.data.sources.recording_readers import RecordingReader, Row
from trainers.distributed.ray_connection import connected
from trainers.errors import AudioError

ROWS_PER_SHARD, SHARDS_PER_TASK, READ_S = 8, 4, 0.03


@dataclass(frozen=True)
class NotedReader:
    """Takes time for each recording, and notes for each task which shards it begins, and which of those were there.

    Attributes:
        reader: Reads the recordings.
        folder: The prepared folder.
        notes: Where a file is written for each task, and one for each process that is at a task.
    """

    reader: RecordingReader
    folder: str
    notes: Path

    def read(self, rows: Sequence[Row]) -> Iterator[bytes | AudioError]:
        """See `RecordingReader`."""
        begun = sorted({row["shard"] for row in rows})
        finished = [shard for shard in begun if (Path(self.folder) / shard_name(shard)).exists()]
        at_work = self.notes / AT_WORK.format(os.getpid())
        at_work.touch()
        note = self.notes / f"{time.time_ns()}-{os.getpid()}"
        note.write_text(json.dumps({"begun": begun, "finished": finished}))
        note.rename(note.with_suffix(".json"))
        for recording in self.reader.read(rows):
            time.sleep(READ_S)
            yield recording
        at_work.unlink()


def prepared(manifest: str, cache_url: str, runner: Runner) -> PreparedSet:
    """The set of a manifest, in small shards of which a task has several."""
    data = DataPart(train=manifest, validation="/nowhere.csv")
    (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",))
    small = PrepareOptions(do_lower_case=False, do_remove_punctuation=False, rows_per_shard=ROWS_PER_SHARD)
    with patch.object(PrepareOptions, "of", lambda data: small):
        return prepare(
            replace(source, rows_at_once=ROWS_PER_SHARD * SHARDS_PER_TASK),
            data,
            cache_url=cache_url,
            storage_options=StorageOptions(),
            run="slow",
            runner=runner,
            log=partial(print, flush=True),
        )


def main(arguments: Sequence[str]) -> int:
    """Prepares: manifest, cache, folder of the notes."""
    manifest, cache_url, notes = arguments
    # Workers import nothing from the driver's folder.
    register_pickle_by_value(sys.modules[__name__])

    def slowly(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        return run_on_ray(blocks, replace(task, reader=NotedReader(task.reader, task.folder_url, Path(notes))))

    with connected(config({})):
        prepared(manifest, cache_url, slowly)
    return 0
