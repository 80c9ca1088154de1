"""Preparing in processes of this machine."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import pyarrow as pa
import pytest

from tests.trainers.data.preparing import DURATIONS_S, TEXTS, Cache
from tests.trainers.pipeline.on_machine import rank_work
from tests.trainers.pipeline.on_machine.test_worker_group import kill_server_at
from tests.trainers.synthetic import write_corpus
from trainers.data.preparation import PrepareOptions, Runner, ShardTask, run_in_process
from trainers.errors import LostWorkerError
from trainers.pipeline.on_machine.process_server import start_server
from trainers.pipeline.on_machine.worker_group import MachineEngine


@pytest.fixture(autouse=True)
def server() -> None:
    start_server([rank_work.__name__], threads=1)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Three shards of two rows at most, with a recording that cannot be read."""
    made = write_corpus(tmp_path, TEXTS, durations_s=DURATIONS_S)
    (tmp_path / "train" / "002.wav").write_bytes(b"no sound")
    return made


def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrepareOptions, "of", lambda data: PrepareOptions(False, False, rows_per_shard=2))


def files(folder: Path) -> dict[str, bytes]:
    """Content of each file of a prepared set, whose folder has a name of its own."""
    return {path.name: path.read_bytes() for path in folder.glob("*/*") if path.is_file()}


@pytest.mark.integration
def test_the_set_is_the_one_that_one_process_prepares(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_shards(monkeypatch)
    runners: dict[str, Runner] = {"here": run_in_process, "processes": MachineEngine().run_shard_tasks}
    for name, runner in runners.items():
        made = Cache(str(tmp_path / name), None).prepare(manifest, runner, "run", max_bad_fraction=0.5)
        assert [row["id"] for row in made.quarantine] == ["train/002.wav"]
    here, processes = (files(tmp_path / name) for name in runners)
    assert len([name for name in here if name.endswith(".arrow")]) >= 3
    assert processes == here


def with_reader(reader: rank_work.KillingReader, blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
    return MachineEngine().run_shard_tasks(blocks, replace(task, reader=reader))


@pytest.mark.integration
def test_a_process_that_dies_ends_it_with_a_message(manifest: Path, tmp_path: Path) -> None:
    runner = partial(with_reader, rank_work.KillingReader())
    with pytest.raises(LostWorkerError, match="preparing: the process of a worker died: "):
        Cache(str(tmp_path / "cache"), None).prepare(manifest, runner)


def test_a_process_server_that_is_killed_ends_it_with_a_message(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_server_at(1, monkeypatch)
    with pytest.raises(LostWorkerError, match="preparing: the process of a worker died: the process that starts the"):
        Cache(str(tmp_path / "cache"), None).prepare(manifest, MachineEngine().run_shard_tasks)


@pytest.mark.parametrize("own", [{}, {"OMP_NUM_THREADS": "5", "OMP_WAIT_POLICY": "active"}])
def test_the_server_s_processes_compute_on_cpus_and_wait_asleep(
    own: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "passive", **own}
    for name in expected:
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    seen: dict[str, str] = {}
    monkeypatch.setattr(forkserver, "ensure_running", lambda: seen.update(os.environ))
    start_server([rank_work.__name__], threads=3)
    assert {name: seen.get(name) for name in expected} == expected
