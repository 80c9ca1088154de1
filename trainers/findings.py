"""What a check is, what it needs and what it finds, for all that make some. Imports no torch.

Each check is made at the first moment that has what it needs, and what is found at one moment is told together.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from trainers.errors import NoBucketError, NotHereError, RayscribeError, StorageError

MAX_NAMED = 5


class Moment(IntEnum):
    """When checks are made, in this order."""

    CLIENT = 0  # a preflight, of package and cluster, in its own process
    INSPECTION = 1  # a process that reads data and models, on the client or on a node
    NODES = 2  # a job that is connected to Ray


class Level(StrEnum):
    """How severe a finding is."""

    OK = "ok"
    WARNING = "warning"  # may be intended; the user decides
    ERROR = "error"  # would stop the run, or falsify its scores
    SKIPPED = "skipped"  # could not be checked from here


class Finding(BaseModel):
    """One result of a check; a check may have several.

    Attributes:
        check: Name of the check; `run_check` fills it in.
        level: How severe it is.
        text: The thing, the value and the fix; for a skipped check, why.
        seconds: How long the check took until it found this; `run_check` fills it in.
        is_unread: Of an error: something could not be read, which other machines may have.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    check: str = ""
    level: Level
    text: str
    seconds: float = 0.0
    is_unread: bool = Field(False, exclude=True)


class Inspected(Protocol):
    """What is checked."""

    @property
    def elsewhere(self) -> bool:
        """Whether the job runs on other machines, so that what cannot be read from here is no error."""


Checked = TypeVar("Checked", bound=Inspected)


@dataclass(frozen=True)
class Need(Generic[Checked]):
    """What a check cannot be made without.

    Attributes:
        moment: The first that may have it.
        lacking: Why it is not there. None: it is.
    """

    moment: Moment
    lacking: Callable[[Checked], str | None]


# The machine that the job runs on: whatever else is wrong on another one, it may have.
NODE: Need[Any] = Need(Moment.INSPECTION, lambda _: None)


@dataclass(frozen=True)
class Check(Generic[Checked]):
    """A check of one thing that goes wrong often.

    Attributes:
        name: One word for a program.
        needs: What it cannot be made without; the first that is not there says why it was skipped.
        run: Checks, and yields what it finds.
    """

    name: str
    needs: Sequence[Need[Checked]]
    run: Callable[[Checked], Iterable[Finding]]

    @property
    def moment(self) -> Moment:
        """The first that has what it needs."""
        return max((need.moment for need in self.needs), default=Moment.CLIENT)


def check(*needs: Need[Any]) -> Callable[[Callable[[Checked], Iterable[Finding]]], Check[Checked]]:
    """Makes a check of a function `check_<name>`, which may raise what it finds."""
    return lambda run: Check(run.__name__.removeprefix("check_"), needs, run)


def ok(text: str) -> Finding:
    """Nothing is wrong."""
    return Finding(level=Level.OK, text=text)


def warning(text: str) -> Finding:
    """It may be intended."""
    return Finding(level=Level.WARNING, text=text)


def problem(text: str) -> Finding:
    """It would stop or falsify the run."""
    return Finding(level=Level.ERROR, text=text)


def unread(text: str) -> Finding:
    """Something could not be read, which would stop the run on this machine."""
    return Finding(level=Level.ERROR, text=text, is_unread=True)


def skipped(text: str) -> Finding:
    """It cannot be checked from here."""
    return Finding(level=Level.SKIPPED, text=text)


def on_other_machines(finding: Finding) -> Finding:
    """What comes of a finding that is of this machine where the job runs on others."""
    return skipped(f"{finding.text} (the nodes may reach it)") if finding.level == Level.ERROR else finding


def found_in(error: RayscribeError, field: str = "") -> Finding:
    """An error in its own words: what could be read and does not fit is as wrong on all machines.

    One of a storage does not know which `field` of the config, as `data.train: `, names it.
    """
    missing = isinstance(error, StorageError | NotHereError) and not isinstance(error, NoBucketError)
    text = f"{field if isinstance(error, StorageError) else ''}{error}"
    return unread(text) if missing else problem(text)


def run_check(check: Check[Checked], checked: Checked) -> Iterator[Finding]:
    """Runs one check; never raises.

    Args:
        check: The check.
        checked: What it checks.

    Yields:
        What it finds, with its name and durations. An error of ours becomes a problem in the error's own words; any
        other exception becomes a warning, so that a bug in a check keeps no good run from starting.
    """
    began = time.monotonic()
    for finding in _findings(check, checked):
        is_of_machine = finding.is_unread or NODE in check.needs
        told = on_other_machines(finding) if checked.elsewhere and is_of_machine else finding
        yield told.model_copy(update={"check": check.name, "seconds": round(time.monotonic() - began, 3)})
        began = time.monotonic()


def _findings(check: Check[Checked], checked: Checked) -> Iterator[Finding]:
    try:
        lacking = next((reason for need in check.needs if (reason := need.lacking(checked)) is not None), None)
        yield from check.run(checked) if lacking is None else [skipped(lacking)]
    except RayscribeError as error:
        # What the client packs, no other machine can read in its place.
        yield problem(str(error)) if check.moment == Moment.CLIENT else found_in(error)
    except Exception as error:
        yield warning(f"the check itself failed ({type(error).__name__}: {error}); check this by hand")


def named(names: Sequence[str]) -> str:
    """The first few of many names, joined by commas."""
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
