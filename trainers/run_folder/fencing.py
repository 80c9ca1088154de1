"""Decides who may write into a run: a driver, and its attempt's worker group, until the journal names another one.

A replaced writer ends with FencedError. It need not notice immediately, since its files have unique names and are read
only if the journal names them, and it can no longer add entries to the journal.
"""

import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from trainers.config.wording import counted
from trainers.errors import FencedError, StorageError
from trainers.run_folder.journal import Group, Journal, State, complete_lines
from trainers.run_folder.layout import ATTEMPTS, RunFolder

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Writer(ABC):
    """A process that may write until the journal names another writer."""

    folder: RunFolder
    journal: Journal
    attempt: int

    @abstractmethod
    def holds(self, state: State) -> bool:
        """Returns True if the journal still names this writer."""

    def check(self) -> State:
        """Returns the state of the journal; raises FencedError if it names another writer."""
        return self._checked(self.journal.read())

    def append(self, decide: Callable[[State], Entry | None]) -> State:
        """Adds an entry, see `Journal.append`, if the journal names this writer.

        Raises:
            FencedError: the journal names another writer; nothing was added.
        """
        return self.journal.append(lambda state: decide(self._checked(state)))

    def _checked(self, state: State) -> State:
        if not self.holds(state):
            raise _fenced(self.folder, self.attempt, state)
        return state


@dataclass(frozen=True)
class Driver(Writer):
    """The driver that prepares an attempt, with a unique id."""

    id: str

    @classmethod
    def open(
        cls,
        folder: RunFolder,
        journal: Journal,
        number: int | None,
        experiment_on: Callable[[State], dict[str, Any] | None],
    ) -> "Driver | None":
        """Begins an attempt; adds nothing and returns None if its experiment has to be resolved again.

        `number` is the attempt's number if a service counts, which fences earlier attempts immediately. None takes the
        next number, for attempts started by hand, which fence a living worker group only when their own group opens.
        `experiment_on` returns a state's experiment, see `State.experiment`; None if it has to be resolved again.

        Raises:
            FencedError: an attempt with this number or a later one has begun.
        """
        driver_id = uuid4().hex

        def decide(state: State) -> Entry | None:
            if state.driver == driver_id:
                return None
            refuse_superseded(folder, state, number)
            experiment = experiment_on(state)
            if experiment is None:
                return None
            # Two experiments in one folder share nothing, so the earlier one is fenced, however this one was started.
            takes_over = number is not None or state.experiment is None or state.experiment["id"] != experiment["id"]
            return {
                "kind": "opened",
                "attempt": state.attempt + 1 if number is None else number,
                "driver": driver_id,
                "experiment": experiment,
                "takes_over": takes_over,
                "sealed": _seal(folder, state) if takes_over else {},
            }

        state = journal.append(decide)
        return cls(folder, journal, state.attempt, driver_id) if state.driver == driver_id else None

    def holds(self, state: State) -> bool:
        return state.driver == self.id

    @property
    def own(self) -> RunFolder:
        """The folder of its attempt, to which no other driver writes."""
        return self.folder.sub(f"{ATTEMPTS}/{self.attempt}")


@dataclass(frozen=True)
class GroupWriter(Writer):
    """The worker group that trains; each rank may have its own writer."""

    group: Group

    @classmethod
    def of(cls, folder: RunFolder, attempt: int, group: str) -> "GroupWriter":
        return cls(folder, Journal(folder), attempt, Group(attempt, group))

    def open(self, workers: int, reason: str | None = None) -> State:
        """Takes over from the previous group, whose metrics count up to now; `reason` is why that group ended.

        Raises:
            FencedError: a later attempt has begun.
        """

        def decide(state: State) -> Entry | None:
            if state.group == self.group.id:
                return None
            if state.attempt != self.attempt:
                raise _fenced(self.folder, self.attempt, state)
            return {
                "kind": "opened",
                "attempt": self.attempt,
                "group": self.group.id,
                "workers": workers,
                "sealed": _seal(self.folder, state),
                **({"reason": reason} if reason is not None else {}),
            }

        return self.journal.append(decide)

    @contextmanager
    def writing_outputs(self) -> Iterator[None]:
        """Guards a block that writes this group's outputs and reads them again, since a later group deletes them.

        Raises:
            FencedError: the journal names another writer, which may have deleted the outputs; deletes them, too.
        """
        try:
            yield
        except (FencedError, StorageError):
            with suppress(StorageError):
                try:
                    self.check()
                except FencedError:
                    self.folder.storage.delete_tree(self.group.outputs)
                    raise
            raise

    def resize(self, step: int, workers: int) -> str | None:
        """Records a change of the number of workers since the previous group, from `step` on.

        Returns a line about the change; None if the number is the same.
        """
        before = self.check().workers
        if before in (None, workers):
            return None
        change = {"step": step, "from": before, "to": workers}
        self.append(lambda _: {"kind": "resized", "attempt": self.attempt, "group": self.group.id, **change})
        return f"from step {step} on, {counted(workers, 'worker', 'trains', 'train')}, before {before}"

    def holds(self, state: State) -> bool:
        return state.group == self.group.id


def refuse_superseded(folder: RunFolder, state: State, number: int | None) -> None:
    """Raises FencedError if an attempt with this number or a later one has begun; does nothing without a number."""
    if number is not None and state.attempt >= number:
        raise _fenced(folder, number, state)


def _fenced(folder: RunFolder, attempt: int, state: State) -> FencedError | StorageError:
    if state.number == 0:
        return StorageError(
            f"{folder.url}: the journal, which attempt {attempt} has opened, was not found from {platform.node()}: "
            "mount the storage on this node"
        )
    newer = (
        f"attempt {state.attempt}"
        if state.attempt != attempt
        else f"another driver or worker group of attempt {state.attempt}"
    )
    return FencedError(
        f"{folder.url}: {newer} has taken this run over, so attempt {attempt} ends here; "
        "nothing that it writes from now on is read"
    )


def _seal(folder: RunFolder, state: State) -> dict[str, int]:
    """Returns how many bytes of metrics count for each group that may not write from now on."""
    return {
        group.id: len(complete_lines(folder, group.metrics_key)) for group in state.groups if group.sealed_bytes is None
    }
