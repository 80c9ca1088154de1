"""The interface of checks, their requirements and their findings. Imports no torch.

Each check runs at the first moment at which its requirements are met; findings of one moment are reported together.
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
    """Moments at which checks run, in this order."""

    CLIENT = 0  # a preflight, of package and cluster, in its own process
    INSPECTION = 1  # a process that reads data and models, on the client or on a node
    NODES = 2  # a job that is connected to Ray


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # may be intended; the user decides
    ERROR = "error"  # would stop the run, or falsify its scores
    SKIPPED = "skipped"  # could not be checked from here


class Finding(BaseModel):
    """One result of a check; a check may have several.

    Attributes:
        check: Name of the check; `run_check` fills it in.
        text: The thing, the value and the fix; for a skipped check, the reason.
        seconds: Time that the check took for this finding; `run_check` fills it in.
        is_unread: For an error: something could not be read on this machine, but may be readable on others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    check: str = ""
    level: Level
    text: str
    seconds: float = 0.0
    is_unread: bool = Field(False, exclude=True)


class Inspected(Protocol):
    """The subject of checks."""

    @property
    def elsewhere(self) -> bool:
        """True if the job runs on other machines, so that a failure to read from here is not an error."""


Checked = TypeVar("Checked", bound=Inspected)


@dataclass(frozen=True)
class Need(Generic[Checked]):
    """A requirement of a check.

    Attributes:
        moment: The first moment at which it may be met.
        lacking: Returns why it is not met; None if it is met.
    """

    moment: Moment
    lacking: Callable[[Checked], str | None]


# For checks of the machine that runs the job; what they find on another machine says nothing about it.
NODE: Need[Any] = Need(Moment.INSPECTION, lambda _: None)


@dataclass(frozen=True)
class Check(Generic[Checked]):
    """A check of one thing that often goes wrong.

    Attributes:
        name: One word, for programs.
        needs: Its requirements; the first that is not met is the reason for skipping it.
    """

    name: str
    needs: Sequence[Need[Checked]]
    run: Callable[[Checked], Iterable[Finding]]

    @property
    def moment(self) -> Moment:
        """The first moment at which its requirements may be met."""
        return max((need.moment for need in self.needs), default=Moment.CLIENT)


def check(*needs: Need[Any]) -> Callable[[Callable[[Checked], Iterable[Finding]]], Check[Checked]]:
    """Makes a check from a function `check_<name>`, which may yield findings or raise errors."""
    return lambda run: Check(run.__name__.removeprefix("check_"), needs, run)


def ok(text: str) -> Finding:
    """Returns a finding that nothing is wrong."""
    return Finding(level=Level.OK, text=text)


def warning(text: str) -> Finding:
    """Returns a finding that may be intended."""
    return Finding(level=Level.WARNING, text=text)


def problem(text: str) -> Finding:
    """Returns a finding that would stop or falsify the run."""
    return Finding(level=Level.ERROR, text=text)


def unread(text: str) -> Finding:
    """Returns a finding that something could not be read, which would stop the run on this machine."""
    return Finding(level=Level.ERROR, text=text, is_unread=True)


def skipped(text: str) -> Finding:
    """Returns a finding that something cannot be checked from here."""
    return Finding(level=Level.SKIPPED, text=text)


def on_other_machines(finding: Finding) -> Finding:
    """Returns the finding for a job on other machines: an error of this machine becomes skipped."""
    return skipped(f"{finding.text} (the nodes may reach it)") if finding.level == Level.ERROR else finding


def found_in(error: RayscribeError, field: str = "") -> Finding:
    """Returns an error as a finding, of which only a failure to read may be specific to this machine.

    Adds the `field` of the config, such as `data.train: `, to errors of a storage, which do not have it.
    """
    missing = isinstance(error, StorageError | NotHereError) and not isinstance(error, NoBucketError)
    text = f"{field if isinstance(error, StorageError) else ''}{error}"
    return unread(text) if missing else problem(text)


def run_check(check: Check[Checked], checked: Checked) -> Iterator[Finding]:
    """Runs one check, and yields its findings, with name and durations; never raises.

    An error of Rayscribe becomes a problem with the error's message; any other exception becomes a warning, so that a
    bug in a check does not prevent a run.
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
        # Only the client can read what it packs.
        yield problem(str(error)) if check.moment == Moment.CLIENT else found_in(error)
    except Exception as error:
        yield warning(f"the check itself failed ({type(error).__name__}: {error}); check this by hand")


def named(names: Sequence[str]) -> str:
    """Returns the first few of many names, joined by commas."""
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
