"""Attempts that are paused, overtaken and resumed: they end by themselves, and change nothing that anybody reads."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.driver_process import TIMEOUT_S, RayHead
from tests.integration.forked_process import ForkedProcess
from tests.integration.slow_task import main as slow_main
from tests.integration.training_trees import write_recipe
from tests.s3 import FaultProxy
from trainers.config.storage_location import DEFAULT_STORAGE_OPTIONS, StorageOptions
from trainers.errors import FencedError
from trainers.main import main
from trainers.models.sources.run_models import find_model
from trainers.run_folder.checkpoints import list_checkpoints
from trainers.run_folder.journal import Journal, State, accepted_metrics, deduplicate
from trainers.run_folder.layout import CHECKPOINTS, METRICS, RESULT, RunFolder
from trainers.storage import open_storage

MAX_STEPS, SAVE_STEPS = 24, 4
# What people look at, at the root of a run folder; and each file of model/.
SHOWN = (
    *("config.yaml", "overrides.yaml", "environment.json", "experiment.json", "quarantine.jsonl"),
    *(METRICS, RESULT, "evaluation/test.json", "evaluation/test.jsonl", "evaluation/validation.json"),
)
SLOW_S = 0.1


@pytest.fixture(scope="module")
def recipe(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with dropout."""
    folder = tmp_path_factory.mktemp("fenced")
    changes = {
        "training.max_steps": MAX_STEPS,
        "training.save_steps": SAVE_STEPS,
        "training.logging_steps": 1,
        "training.per_device_train_batch_size": 4,
        "training.report_to": [],
    }
    return write_recipe(folder / "recipe.yaml", tones, changes)


@dataclass
class Attempts:
    """Attempts at one run, each a driver in a process of its own.

    Attributes:
        storage_path: Where the run folder is.
        recipe: The YAML file.
        scratch: For logs, and for the node's disk of each attempt.
        options: How the storage is reached.
        arguments: For every driver.
        drivers: The process of each attempt.
    """

    storage_path: str
    recipe: Path
    scratch: Path
    options: StorageOptions = DEFAULT_STORAGE_OPTIONS
    arguments: Sequence[str] = ("--no-ray",)
    drivers: dict[int, ForkedProcess] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = RunFolder(open_storage(f"{self.storage_path}/run", self.options))
        self._journal = Journal(self.folder)

    def state(self) -> State:
        """What the journal comes to."""
        return self._journal.read()

    def start(self, number: int, *, slow: str | None = None, sets: Sequence[str] = ()) -> None:
        """Starts an attempt, on a node's disk of its own.

        Args:
            number: Its number.
            slow: Writes to paths with this in them take a while.
            sets: Further overrides.
        """
        node = self.scratch / f"node-{number}"
        node.mkdir(parents=True, exist_ok=True)
        arguments = [str(SLOW_S), slow] if slow is not None else []
        arguments += ["--config", str(self.recipe), "--attempt", str(number), *self.arguments]
        for item in (f"run.storage_path={self.storage_path}", "run.name=run", *sets):
            arguments += ["--set", item]
        environment = {**os.environ, "TMPDIR": str(node), "OMP_NUM_THREADS": "1"}
        run = slow_main if slow is not None else main
        self.drivers[number] = ForkedProcess(run, arguments, environment=environment, log=self.log(number))

    def log(self, number: int) -> Path:
        """What an attempt prints."""
        return self.scratch / f"attempt-{number}.log"

    def pause_when(self, number: int, condition: Callable[[], bool], what: str) -> None:
        """Stops an attempt's process as soon as a condition holds."""
        end = time.monotonic() + TIMEOUT_S
        while not condition():
            code = self.drivers[number].poll()
            assert code is None, f"attempt {number} ended with {code} before {what}:\n{self.log(number).read_text()}"
            assert time.monotonic() < end, f"no {what}:\n{self.log(number).read_text()}"
            time.sleep(0.02)
        self.drivers[number].send_signal(signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        """Lets an attempt go on."""
        self.drivers[number].send_signal(signal.SIGCONT)

    def ends_with(self, number: int, code: int) -> None:
        """Waits for an attempt to end by itself."""
        assert self.drivers[number].wait(TIMEOUT_S) == code, self.log(number).read_text()

    def kill_all(self) -> None:
        """Leaves no process behind."""
        for driver in self.drivers.values():
            driver.kill()
            driver.wait()

    def state_read(self) -> dict[str, Any]:
        """Everything of the run that is read, by programs and by people, to the byte."""
        folder, state = self.folder, Journal(self.folder).read()
        assert state.finished is not None
        model = open_storage(find_model(f"{self.storage_path}/run", self.options), self.options)
        checkpoints = list_checkpoints(folder)
        stored = folder.storage.sub(CHECKPOINTS)
        return {
            "journal": state,
            "checkpoints": checkpoints,
            "files": {
                f"{item.name}/{file}": stored.read_bytes(f"{item.name}/{file}")
                for item in checkpoints
                for file in item.files
            },
            "metrics": accepted_metrics(folder, state),
            "model": {entry.key: model.read_bytes(entry.key) for entry in model.list_files()},
            "shown model": {
                entry.key: folder.storage.read_bytes(entry.key) for entry in folder.storage.list_files("model")
            },
            "shown": {name: folder.storage.read_bytes(name) for name in SHOWN},
        }


@contextmanager
def attempts_at(*arguments: Any, **fields: Any) -> Iterator[Attempts]:
    """Attempts whose processes end with the block."""
    attempts = Attempts(*arguments, **fields)
    try:
        yield attempts
    finally:
        attempts.kill_all()


@pytest.fixture(scope="module")
def calm(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same run, undisturbed."""
    scratch = tmp_path_factory.mktemp("calm")
    with attempts_at(str(scratch / "runs"), recipe, scratch) as attempts:
        attempts.start(1)
        attempts.ends_with(1, 0)
        return attempts.state_read()


@pytest.mark.long
def test_four_attempts_paused_on_a_disk_wake_when_the_fifth_has_finished(
    recipe: Path, calm: dict[str, Any], tmp_path: Path
) -> None:
    with attempts_at(str(tmp_path / "runs"), recipe, tmp_path) as attempts:
        overtake(attempts, calm)


@pytest.mark.long
def test_four_attempts_paused_on_s3_wake_when_the_fifth_has_finished(
    recipe: Path, calm: dict[str, Any], tmp_path: Path, s3_bucket: str, fault_proxy: FaultProxy
) -> None:
    fault_proxy.delay_put_s = SLOW_S
    fault_proxy.delays = lambda method, path: "-a3-" in path or "attempts/4/outputs-" in path
    sets = ("--set", f"run.s3_endpoint_url={fault_proxy.url}", "--no-ray")
    with attempts_at(
        f"{s3_bucket}/runs", recipe, tmp_path, options=StorageOptions(fault_proxy.url), arguments=sets
    ) as attempts:
        overtake(attempts, calm)


def overtake(attempts: Attempts, calm: dict[str, Any]) -> None:
    """Pauses four attempts, each at another point, has a fifth finish, and resumes the four."""
    checkpoints, outputs = attempts.folder.storage.sub(CHECKPOINTS), "attempts/4"
    cache = attempts.scratch / "prepared-1"
    attempts.start(1, slow="/prepared-1/", sets=[f"data.cache_dir={cache}"])
    attempts.pause_when(1, lambda: any(cache.glob("*/*")), "preparing")
    assert attempts.state() == State(), "it has not begun yet"

    attempts.start(2)
    attempts.pause_when(2, lambda: len(attempts.state().checkpoints) >= 2, "second checkpoint")
    assert attempts.state().finished is None

    attempts.start(3, slow="-a3-")
    attempts.pause_when(3, lambda: any("-a3-" in name for name in checkpoints.list_folders()), "upload")
    assert not any("-a3-" in item.name for item in attempts.state().checkpoints), "the upload was not under way"

    attempts.start(4, slow="/outputs-")
    attempts.pause_when(4, lambda: "outputs-" in str(attempts.folder.storage.list_files(outputs)), "export")
    assert attempts.state().finished is None, "the export was over"

    attempts.start(5)
    attempts.ends_with(5, 0)
    before = attempts.state_read()
    check_same(before, calm)
    for number in (1, 2, 3, 4):
        attempts.go_on(number)
        attempts.ends_with(number, FencedError.exit_code)
        assert "attempt 5 has taken this run over" in attempts.log(number).read_text()
        assert attempts.state_read() == before, f"attempt {number} woke and changed what is read"
    assert "outputs-" not in str(attempts.folder.storage.list_folders(outputs)), "what is not read is left behind"


def check_same(state_read: dict[str, Any], calm: dict[str, Any]) -> None:
    """Weights and scores are the undisturbed run's, to the bit."""
    assert state_read["checkpoints"][-1].step == MAX_STEPS
    assert (
        state_read["checkpoints"][-1].files["model.safetensors"] == calm["checkpoints"][-1].files["model.safetensors"]
    )
    assert state_read["model"]["model.safetensors"] == calm["model"]["model.safetensors"]
    assert state_read["shown model"]["model/model.safetensors"] == calm["model"]["model.safetensors"]
    assert state_read["shown"]["evaluation/test.json"] == calm["shown"]["evaluation/test.json"]
    assert state_read["shown"][METRICS] == deduplicate(state_read["metrics"])


@pytest.mark.long
def test_a_driver_on_ray_and_its_workers_wake_when_the_next_attempt_has_finished(
    ray_head: RayHead, recipe: Path, tmp_path: Path
) -> None:
    arguments = ("--address", ray_head.address, "--set", "scaling.num_workers=2")
    with attempts_at(str(tmp_path / "runs"), recipe, tmp_path, arguments=arguments) as attempts:
        attempts.start(1)
        attempts.pause_when(1, lambda: bool(attempts.state().checkpoints), "first checkpoint")
        workers = ray_head.training_workers()
        for worker in workers:
            worker.suspend()
        assert workers and attempts.state().finished is None
        attempts.start(2)
        attempts.ends_with(2, 0)
        before = attempts.state_read()
        for worker in workers:
            worker.resume()
        attempts.go_on(1)
        attempts.ends_with(1, FencedError.exit_code)
        assert psutil.wait_procs(workers, timeout=TIMEOUT_S)[1] == []
        assert "attempt 2 has taken this run over" in attempts.log(1).read_text()
        assert attempts.state_read() == before
