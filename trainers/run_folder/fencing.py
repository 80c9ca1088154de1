"""Who may write into a run: a driver, and the worker group of its attempt; each until another is named in the journal.

One that finds another named in its place ends with FencedError. It need not notice in time: what it writes has names of
its own, and is read only once the journal names it, to which it can no longer add an entry.
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
    """A process that may write until the journal names another."""

    folder: RunFolder
    journal: Journal
    attempt: int

    @abstractmethod
    def holds(self, state: State) -> bool:
        """Whether the journal still names it."""

    def check(self) -> State:
        """The state of the journal, as long as it names this writer. Raises FencedError: it names another."""
        return self._checked(self.journal.read())

    def append(self, decide: Callable[[State], Entry | None]) -> State:
        """Adds an entry, see `Journal.append`, as long as the journal names this writer.

        Raises:
            FencedError: it names another; nothing was added.
        """
        return self.journal.append(lambda state: decide(self._checked(state)))

    def _checked(self, state: State) -> State:
        if not self.holds(state):
            raise _fenced(self.folder, self.attempt, state)
        return state


@dataclass(frozen=True)
class Driver(Writer):
    """The driver of an attempt, which prepares it; no other driver has its id."""

    id: str

    @classmethod
    def open(
        cls,
        folder: RunFolder,
        journal: Journal,
        number: int | None,
        experiment_on: Callable[[State], dict[str, Any] | None],
    ) -> "Driver | None":
        """Begins an attempt.

        Where a service counts, it has a number, and ends the attempts before at once. None: the next free one, started
        by hand; it leaves a living worker group alone until its own may open. `experiment_on` returns the experiment,
        as `State.experiment`; None: on this state it is to be resolved anew.

        Returns:
            The driver; None where the experiment is to be resolved anew, and nothing was entered.

        Raises:
            FencedError: an attempt of this number or a later one has begun.
        """
        driver_id = uuid4().hex

        def decide(state: State) -> Entry | None:
            if state.driver == driver_id:
                return None
            refuse_superseded(folder, state, number)
            experiment = experiment_on(state)
            if experiment is None:
                return None
            # Two experiments in one folder share nothing, so the earlier one ends, whoever began this one.
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
        """The folder of its attempt, into which no other driver writes."""
        return self.folder.sub(f"{ATTEMPTS}/{self.attempt}")


@dataclass(frozen=True)
class GroupWriter(Writer):
    """A worker group, which trains; each rank may have a writer of it, once the main process has opened it."""

    group: Group

    @classmethod
    def of(cls, folder: RunFolder, attempt: int, group: str) -> "GroupWriter":
        return cls(folder, Journal(folder), attempt, Group(attempt, group))

    def open(self, workers: int, reason: str | None = None) -> State:
        """Takes over from the group before, whose metrics count up to this moment; `reason`: why it has ended.

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
        """A block that writes this group's outputs, which a later one deletes, and reads them again.

        Raises:
            FencedError: the journal names another, which may be why they could not be read; they are deleted.
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
        """Enters from which step on the group trains, where it has another number of workers than the one before.

        Returns:
            What changes, as a line; None: nothing does.

        Raises:
            FencedError: the journal names another.
        """
        before = self.check().workers
        if before in (None, workers):
            return None
        change = {"step": step, "from": before, "to": workers}
        self.append(lambda _: {"kind": "resized", "attempt": self.attempt, "group": self.group.id, **change})
        is_are = "is" if workers == 1 else "are"
        return f"from step {step} on there {is_are} {counted(workers, 'worker')}, before {before}"

    def holds(self, state: State) -> bool:
        return state.group == self.group.id


def refuse_superseded(folder: RunFolder, state: State, number: int | None) -> None:
    """Refuses to begin an attempt whose number is not above all others.

    Raises:
        FencedError: names the attempt that has the run now.
    """
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
    """How many bytes of metrics count, of each group that may not write any more from now on."""
    return {
        group.id: len(complete_lines(folder, group.metrics_key)) for group in state.groups if group.sealed_bytes is None
    }
