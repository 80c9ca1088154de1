"""launch(config): begins an attempt, runs its program on all workers, and records the result. Imports no torch."""

import shlex
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.train import RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from trainers.config.locations import storage_path_of
from trainers.config.schema import ScriptConfig
from trainers.distributed.console import print_line
from trainers.distributed.ray_connection import check_capacity
from trainers.errors import ResumeError
from trainers.pipeline.on_ray.ray_fit import fit_to_end, scaling_config
from trainers.run_folder import layout
from trainers.run_folder.attempt_request import TRAINER, AttemptRequest, enter_prepared
from trainers.run_folder.attempt_status import FinalStatus
from trainers.run_folder.checkpoints import newest
from trainers.run_folder.fencing import Driver
from trainers.run_folder.journal import Journal, State, publish
from trainers.run_folder.layout import RunFolder
from trainers.scripts.accelerators import accelerator_of
from trainers.scripts.backend import ScriptBackendConfig
from trainers.scripts.inputs.prepare import hash_of_files
from trainers.scripts.node_folder import ScriptTask
from trainers.scripts.program_worker import run_program_per_worker
from trainers.storage import open_storage


@dataclass(frozen=True)
class LaunchResult:
    """The result of a run: its folder, and the last metrics that the program reported."""

    folder: str
    metrics: Mapping[str, Any]

    @property
    def headline(self) -> str:
        """`the program ended with exit code 0 · WER 12.30% · loss 0.1234 · <folder>`."""
        shown = []
        if self.metrics.get("wer") is not None:
            shown.append(f"WER {self.metrics['wer']:.2f}%")
        if self.metrics.get("loss") is not None:
            shown.append(f"loss {self.metrics['loss']:.4f}")
        return " · ".join(["the program ended with exit code 0", *shown, self.folder])


def launch(
    config: ScriptConfig,
    *,
    base: Path | None,
    package: str | None,
    overrides: Sequence[str] = (),
    attempt: int | None = None,
    expected: str | None = None,
) -> LaunchResult:
    """Runs one program; if it was interrupted, it continues from its own last checkpoint.

    The config must have `run.name`. `base` is the program's folder; None if each worker has it in a package. `package`
    is the id of its files, by default the hash of the files in `base`. For other arguments see `AttemptRequest`.
    """
    folder = RunFolder.of(config)
    open_storage(storage_path_of(config), config.run.storage_options).check_writable()
    journal, request = Journal(folder), AttemptRequest(folder, config.trainer, overrides, attempt, expected)
    with FinalStatus(config, folder, attempt) as final:
        driver = _begin(config, journal, request)
        if driver is not None:
            final.attempt = driver.attempt
            if package is None and base is not None and config.script.prepare is not None:
                package = hash_of_files(config.script, base)
            task = ScriptTask(config, driver.attempt, base, package or "")
            _run_program(task, folder, managed_by_service=request.is_managed)
            _finish(driver)
        publish(folder, journal)
        finished = journal.read().finished
        assert finished is not None
        result = LaunchResult(folder.url, finished.result["metrics"])
        final.headline = result.headline
    return result


def _begin(config: ScriptConfig, journal: Journal, request: AttemptRequest) -> Driver | None:
    """Begins an attempt; returns None if the run has finished already."""
    folder, state = request.folder, journal.read()
    request.check(state)
    if config.run.resume == "never" and state.number and not request.is_retry:
        raise ResumeError(f"{folder.url}: this run exists, and run.resume is never: give it another run.name")
    if state.finished is not None:
        if (changed := _other_command(config, state)) is not None:
            raise ResumeError(
                f"{folder.url}: this run has finished with another command ({changed}): give this one another run.name"
            )
        print_line(f"{folder.url}: this program has already finished; use another run.name to run it again")
        return None
    new = {"id": uuid.uuid4().hex, TRAINER: config.trainer, "command": list(config.script.command)}
    driver = Driver.open(folder, journal, request.number, lambda state: state.experiment or new)
    assert driver is not None, "an experiment is given for each state"
    request.write_start(driver, config, driver.check().experiment or {})
    driver.own.write_jsonl(layout.QUARANTINE, [])
    enter_prepared(driver)
    if (before := _other_command(config, state)) is not None:
        print_line(f"changed since this run began: script.command, before: {before}")
    last = newest(state.checkpoints)
    if last is not None:
        print_line(f"the program can continue from {last.name} if it looks for it in its output folder")
    return driver


def _other_command(config: ScriptConfig, state: State) -> str | None:
    """Returns the run's command if it differs from the config's; None if they are equal or it has none."""
    before = (state.experiment or {}).get("command")
    return shlex.join(before) if before is not None and before != list(config.script.command) else None


def _finish(driver: Driver) -> None:
    """Records the outputs of the last worker group as the result of the run."""
    group = driver.check().groups[-1]
    kept = driver.folder.sub(group.outputs)
    result = kept.read_json(layout.RESULT)
    files = sorted(entry.key for entry in kept.storage.list_files())
    entry = {"kind": "finished", "attempt": driver.attempt, "outputs": group.outputs, "files": files, "result": result}
    driver.append(lambda _: entry)


def _run_program(task: ScriptTask, folder: RunFolder, *, managed_by_service: bool) -> None:
    """Runs a program on all workers until it ends; raises the errors of `fit_to_end` and `check_capacity`."""
    config = task.config
    check_capacity(config)

    def make(coordinator: Any, ray_run: RunConfig) -> DataParallelTrainer:
        return DataParallelTrainer(
            run_program_per_worker,
            train_loop_config={"task": task, "coordinator": coordinator, "folder": folder},
            backend_config=ScriptBackendConfig(accelerator_of(config.scaling).resource),
            scaling_config=scaling_config(config.scaling),
            run_config=ray_run,
        )

    fit_to_end(make, config, folder, task.attempt, managed_by_service=managed_by_service)
