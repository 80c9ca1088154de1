"""Preparing of which workers, nodes and the driver are killed: no row is lost, and no finished shard is done again."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from tests.integration import slow_preparing
from tests.integration.driver_process import RayHead
from tests.integration.forked_process import ForkedProcess
from tests.integration.processes_at_work import at_work
from tests.integration.ray_cluster import ray_cluster
from tests.integration.slow_preparing import ROWS_PER_SHARD
from tests.trainers.synthetic import write_corpus
from trainers.data.preparation import run_in_process
from trainers.data.prepared_set import PreparedSet, shard_name

ROWS, GONE = 240, (7, 100, 239)
SHARDS = ROWS // ROWS_PER_SHARD
TIMEOUT_S, POLL_S = 300.0, 0.02
KINDS = ("worker", "node", "driver")
# Of its last shards none may be left when the moment of a kill has come.
LAST_MOMENT = SHARDS - 6


@dataclass
class Preparing:
    """One prepared folder, the driver that works on it, and what is killed of both.

    Attributes:
        cluster: A head for drivers, and two nodes of one CPU for tasks.
        address: What drivers join.
        manifest: What is prepared.
        folder: For the cache, the notes and the log.
        draws: What is killed, and when.
        shards: The files of finished shards, as they were first seen: inode and time.
    """

    cluster: Cluster
    address: str
    manifest: Path
    folder: Path
    draws: random.Random
    driver: ForkedProcess | None = None
    shards: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def cache(self) -> Path:
        return self.folder / "prepared"

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    def start(self) -> None:
        self.notes.mkdir(exist_ok=True)
        self.driver = ForkedProcess(
            slow_preparing.main,
            [str(self.manifest), str(self.cache), str(self.notes)],
            environment={**os.environ, "RAY_ADDRESS": self.address},
            log=self.folder / "log",
        )

    def look(self) -> int:
        """Notes the shards that are finished; gives their number."""
        for path in self.cache.glob("*/*.arrow"):
            status = path.stat()
            self.shards.setdefault(path.name, (status.st_ino, status.st_mtime_ns))
        return len(self.shards)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition; a driver that ends before is an error."""
        assert self.driver is not None
        end = time.monotonic() + TIMEOUT_S
        while not condition():
            assert self.driver.poll() is None, f"the driver ended before {what}: {self.log()}"
            assert time.monotonic() < end, f"no {what} in {TIMEOUT_S} s: {self.log()}"
            time.sleep(POLL_S)

    def log(self) -> str:
        return (self.folder / "log").read_text()[-4000:]

    def finish(self) -> PreparedSet:
        """Waits for the driver to end well; gives the set that it prepared."""
        assert self.driver is not None
        code = self.driver.wait(TIMEOUT_S)
        assert code == 0, self.log()
        return found_in(self.cache)

    def kill(self, kind: str) -> None:
        """Kills a worker that is at a task, the node of one or another, or the driver, which is started again."""
        if kind == "worker":
            self.wait_for(lambda: bool(at_work(self.notes)), "worker at a task")
            self.draws.choice(at_work(self.notes)).send_signal(signal.SIGKILL)
        elif kind == "node":
            self.cluster.remove_node(self.draws.choice(list(self.cluster.worker_nodes)), allow_graceful=False)
            self.cluster.add_node(num_cpus=1)
        else:
            assert self.driver is not None
            self.driver.kill()
            self.driver.wait()
            self.start()

    def begun(self) -> Counter[int]:
        """How often tasks began each shard, none of which was finished then."""
        notes = [json.loads(path.read_text()) for path in self.notes.glob("*.json")]
        assert [note["finished"] for note in notes] == [[]] * len(notes), "a finished shard was done again"
        return Counter(chain.from_iterable(note["begun"] for note in notes))


def found_in(cache: Path) -> PreparedSet:
    """The only set of a cache, and its folder is the only one."""
    (pointer,) = cache.glob("*.json")
    claim = json.loads(pointer.read_text())
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [claim["folder"]]
    return PreparedSet(str(cache / claim["folder"]), pointer.stem, sha256=claim["sha256"])


def described(made: PreparedSet) -> dict[str, Any]:
    """All that a set holds."""
    shards = sorted(path.name for path in Path(made.url).glob("*.arrow"))
    assert shards == [shard_name(number) for number in range(SHARDS)]
    return {
        "key": made.key,
        "index": made.index.to_pylist(),
        "quarantine": made.quarantine,
        "summary": made.summary,
        "sha256": made.sha256,
        "shards": [(Path(made.url) / name).read_bytes() for name in shards],
    }


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some hundred clips, of which a few are gone."""
    folder = tmp_path_factory.mktemp("clips")
    durations_s = [0.2 + 0.01 * (number % 37) for number in range(ROWS)]
    made = write_corpus(folder, [f"text {number}" for number in range(ROWS)], durations_s=durations_s)
    for number in GONE:
        (folder / "train" / f"{number:03d}.wav").unlink()
    return made


@pytest.fixture(scope="module")
def undisturbed(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The set as this process prepares it, which is the same with and without Ray."""
    made = described(slow_preparing.prepared(str(manifest), str(tmp_path_factory.mktemp("calm")), run_in_process))
    assert len(made["index"]) == ROWS - len(GONE)
    return made


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Cluster, RayHead]]:
    """A head for drivers, and two nodes for tasks; a lost node is noticed within seconds."""
    soon = {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
    with ray_cluster(num_cpus=0, _system_config=soon) as (made, head):
        for _ in range(2):
            made.add_node(num_cpus=1)
        yield made, head


def survives(
    seed: int, kills: int, cluster: tuple[Cluster, RayHead], manifest: Path, undisturbed: dict[str, Any], folder: Path
) -> None:
    """Prepares while so many kills come at random moments, each kind in its turn."""
    draws = random.Random(seed)
    preparing = Preparing(cluster[0], cluster[1].address, manifest, folder, draws)
    order = draws.sample(KINDS, len(KINDS))
    preparing.start()
    for number, finished in enumerate(sorted(draws.choices(range(1, LAST_MOMENT), k=kills))):
        preparing.wait_for(lambda finished=finished: preparing.look() >= finished, f"shard {finished}")  # type: ignore[misc]
        time.sleep(draws.uniform(0.0, 4 * slow_preparing.READ_S * ROWS_PER_SHARD))
        preparing.look()
        preparing.kill(order[number % len(order)])
    made = preparing.finish()
    assert described(made) == undisturbed
    begun = preparing.begun()
    assert set(begun) == set(range(SHARDS))
    assert begun.total() > SHARDS, "no kill came in the middle of a task"
    files = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in Path(made.url).glob("*.arrow")}
    assert preparing.shards.items() <= files.items(), "a finished shard was written again"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_killed_workers_nodes_and_drivers_cost_no_row_and_no_finished_shard(
    cluster: tuple[Cluster, RayHead], manifest: Path, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    survives(0, len(KINDS), cluster, manifest, undisturbed, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 21))
def test_nor_do_many_at_any_moment(
    seed: int, cluster: tuple[Cluster, RayHead], manifest: Path, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    survives(seed, 2 * len(KINDS), cluster, manifest, undisturbed, tmp_path)
