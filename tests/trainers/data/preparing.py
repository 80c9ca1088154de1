"""Preparing manifests to a folder or bucket, as tests do it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import Runner, ShardTask, prepare, run_in_process
from trainers.data.prepared_set import PreparedSet
from trainers.data.sources.known_sources import open_sources
from trainers.distributed.console import Event
from trainers.storage import Storage, open_storage

ROOT = Path(__file__).parents[3]
TEXTS = ["One, two!", "three", "četiri", "", "five"]
DURATIONS_S = [0.5, 0.301, 1.0, 0.25, 0.7]


@dataclass(frozen=True)
class Cache:
    """Where sets are prepared to: a folder, or a bucket."""

    url: str
    endpoint: str | None

    @property
    def storage(self) -> Storage:
        return open_storage(self.url, StorageOptions(self.endpoint))

    def prepare(
        self,
        manifest: Path | str,
        runner: Runner = run_in_process,
        run: str | None = None,
        log: Callable[[Event], None] = lambda line: None,
        **options: Any,
    ) -> PreparedSet:
        """Prepares as a run does; each time another, unless it has a name."""
        data = DataPart(train=str(manifest), validation="/nowhere.csv", **options)
        (source,) = open_sources(data, storage_options=StorageOptions(self.endpoint), splits=("train",))
        return prepare(
            source,
            data,
            cache_url=self.url,
            storage_options=StorageOptions(self.endpoint),
            run=run or uuid4().hex,
            runner=runner,
            log=log,
        )

    def start_process(self, manifest: Path, stop: str, run: str | None = None) -> "subprocess.Popen[str]":
        arguments = [str(manifest), self.url, self.endpoint or "-", stop, run or uuid4().hex]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.trainers.data.prepare_process", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def never(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
    raise AssertionError("prepared again")
    yield
