"""A manifest transcribed over two nodes of which workers, a node and the driver are killed: each row is there once."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from tests.integration import slow_transcribing
from tests.integration.driver_process import RayHead
from tests.integration.forked_process import ForkedProcess
from tests.integration.processes_at_work import at_work
from tests.integration.ray_cluster import ray_cluster
from tests.integration.slow_transcribing import ROWS_PER_SHARD
from tests.trainers.pipeline.transcription.tiny_models import write_ctc
from tests.trainers.synthetic import write_corpus
from trainers.errors import QuarantinedError

ROWS, GONE = 200, (7, 100)
SHARDS = ROWS // ROWS_PER_SHARD
TIMEOUT_S, POLL_S = 300.0, 0.02


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Cluster, RayHead]]:
    """A head for drivers, and two nodes for processes; a lost node is noticed within seconds."""
    soon = {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
    with ray_cluster(num_cpus=0, _system_config=soon) as (made, head):
        for _ in range(2):
            made.add_node(num_cpus=1)
        yield made, head


class Transcribing:
    """A folder of transcripts, and the driver that works on it."""

    def __init__(self, address: str, folder: Path):
        self._address, self.out, self.notes, self.log = address, folder / "out", folder / "notes", folder / "log"
        self.notes.mkdir()
        model = write_ctc(folder / "model")
        texts, durations_s = [""] * ROWS, [0.2 + 0.01 * (number % 37) for number in range(ROWS)]
        manifest = write_corpus(folder, texts, durations_s=durations_s)
        for number in GONE:
            (folder / "train" / f"{number:03d}.wav").unlink()
        self._arguments = [str(self.notes), str(model), str(manifest), "--out", str(self.out), "--format", "srt"]
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "RAY_ADDRESS": self._address}
        self.driver = ForkedProcess(slow_transcribing.main, self._arguments, environment=environment, log=self.log)

    def shards(self) -> dict[str, tuple[int, int]]:
        """Those that are there: inode and time of each file."""
        found = {path.name: path.stat() for path in (self.out / "transcripts").glob("part-*.jsonl")}
        return {name: (status.st_ino, status.st_mtime_ns) for name, status in found.items()}

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not condition():
            assert self.driver.poll() is None, f"the driver ended before {what}: {self.log.read_text()[-4000:]}"
            assert time.monotonic() < end, f"no {what} in {TIMEOUT_S} s: {self.log.read_text()[-4000:]}"
            time.sleep(POLL_S)

    def lines(self) -> list[dict[str, Any]]:
        parts = sorted((self.out / "transcripts").glob("part-*.jsonl"))
        return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kinds", [("worker", "driver"), ("node", "driver"), ("node", "worker")])
def test_killed_twice_each_row_is_in_one_line(
    kinds: tuple[str, ...], cluster: tuple[Cluster, RayHead], tmp_path: Path
) -> None:
    nodes, head = cluster
    transcribing = Transcribing(head.address, tmp_path)
    for number, kind in enumerate(kinds, 1):
        done = SHARDS * number // (len(kinds) + 2)
        transcribing.wait_for(lambda done=done: len(transcribing.shards()) >= done, f"shard {done}")  # type: ignore[misc]
        before = transcribing.shards()
        if kind == "worker":
            transcribing.wait_for(lambda: bool(at_work(transcribing.notes)), "process at a shard")
            at_work(transcribing.notes)[0].send_signal(signal.SIGKILL)
        elif kind == "node":
            nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
            nodes.add_node(num_cpus=1)
        else:
            transcribing.driver.kill()
            transcribing.driver.wait()
            transcribing.start()
    assert transcribing.driver.wait(TIMEOUT_S) == QuarantinedError.exit_code, transcribing.log.read_text()[-4000:]
    lines = transcribing.lines()
    assert [line["id"] for line in lines] == [f"train/{number:03d}.wav" for number in range(ROWS)]
    assert tuple(number for number, line in enumerate(lines) if "error" in line) == GONE
    assert before.items() <= transcribing.shards().items(), "a finished shard was written again"
    totals = json.loads((transcribing.out / "result.json").read_text())
    assert (totals["recordings"], totals["quarantined"]) == (ROWS, len(GONE))
    assert len([*transcribing.out.rglob("*.srt")]) == ROWS - len(GONE)
