"""A request for an attempt of a training or a program, with the checks before it begins. Imports no torch."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainers.config.schema import AnyConfig
from trainers.errors import ResumeError, StorageError
from trainers.run_folder import layout
from trainers.run_folder.fencing import Driver, refuse_superseded
from trainers.run_folder.journal import State, publish
from trainers.run_folder.layout import CHECKPOINTS, RESULT, RunFolder
from trainers.run_folder.staging import staged_checkpoints_of_run

# Key in an experiment for the kind of its run; a training has no such entry.
TRAINER, TRAINING = "trainer", "huggingface"


@dataclass(frozen=True)
class AttemptRequest:
    """A request for the next attempt of a run.

    Attributes:
        overrides: The overrides of the command line, for the run folder.
        number: The attempt's number if a service counts, which takes over from all earlier ones; None for the next.
        expected: A checkpoint that the run must have, according to the service; None if none is known.
    """

    folder: RunFolder
    trainer: str = TRAINING
    overrides: Sequence[str] = ()
    number: int | None = None
    expected: str | None = None

    @property
    def is_managed(self) -> bool:
        """True if a service counts the attempts."""
        return self.number is not None

    @property
    def is_retry(self) -> bool:
        """True if a service retries this run."""
        return self.number is not None and self.number > 1

    def check(self, state: State) -> None:
        """Raises an error if no attempt may begin on this state of the run's journal."""
        refuse_superseded(self.folder, state, self.number)
        refuse_another_trainer(state, self.folder, self.trainer)
        refuse_without_journal(state, self.folder)
        _refuse_without_checkpoint(state, self.folder, self.expected)

    def write_start(
        self,
        driver: Driver,
        config: AnyConfig,
        experiment: Mapping[str, Any],
        *,
        changes: Sequence[str] = (),
        data: Mapping[str, str] | None = None,
    ) -> None:
        """Writes the initial files of the attempt into its own folder; `data` has the hashes of its prepared sets."""
        driver.own.write_json(layout.ATTEMPT, {**layout.describe_start(), "changes": changes})
        driver.own.write_request(config, self.overrides)
        driver.own.write_json(layout.ENVIRONMENT, layout.describe_environment(data or {}))
        driver.own.write_json(layout.EXPERIMENT, experiment)


def enter_prepared(driver: Driver, processor: int | None = None, mix: Mapping[str, Any] | None = None) -> None:
    """Makes the run folder show a completely written attempt; `processor` is the attempt that has the processor."""
    prepared = {"kind": "prepared", "attempt": driver.attempt, "processor": processor}
    driver.append(lambda _: {**prepared, "mix": mix} if mix is not None else prepared)
    publish(driver.folder, driver.journal)


def refuse_another_trainer(state: State, folder: RunFolder, trainer: str) -> None:
    """Raises ResumeError if the folder has a run of another kind."""
    if state.experiment is not None and (known := state.experiment.get(TRAINER, TRAINING)) != trainer:
        raise ResumeError(
            f"{folder.url}: holds a run with trainer: {known}, and this recipe has trainer: {trainer}: name another "
            "run (--set run.name=…)"
        )


def refuse_without_journal(state: State, folder: RunFolder) -> None:
    """Refuses a folder with checkpoints but no journal, instead of starting from scratch next to them."""
    if state.number == 0 and (folder.storage.exists(RESULT) or folder.storage.list_folders(CHECKPOINTS)):
        raise ResumeError(
            f"{folder.url}: holds checkpoints or a result but no journal, so it is not known which of them count; "
            "name another run (--set run.name=…); --set run.resume=from:… starts it from one of them"
        )


def _refuse_without_checkpoint(state: State, folder: RunFolder, expected: str | None) -> None:
    """Refuses a folder in which a known checkpoint of the run is missing, as on an unmounted storage."""
    if state.has_begun:
        return
    start_over = "give the run another name (run.name)"
    if expected is None and state.number == 0:
        staged = next(staged_checkpoints_of_run(folder.url), None)
        if staged is None:
            return
        expected = staged.name
        start_over = f"{start_over}, or delete {staged}, where it was left to be uploaded"
    if expected is not None:
        raise StorageError(
            f"{folder.url}: this run has {expected}, but no checkpoint was found there from {platform.node()}: mount "
            f"the storage on this node, and the run continues; to start over on purpose, {start_over}"
        )
