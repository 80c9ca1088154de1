"""What preflight finds, and what a check is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from jobs.model import Record
from jobs.preflight.case import Case

Level = Literal["ok", "warning", "fault", "skipped"]


class Finding(Record):
    """One thing that a check has to say; a check may have several.

    Attributes:
        check: Name of the check.
        level: A fault stops the run, now or later; a warning is the user's to judge; skipped: not told from here.
        text: The thing, the value and the fix; for a skipped check, why.
        seconds: How long the look took.
    """

    check: str
    level: Level
    text: str
    seconds: float = 0.0


class Access(StrEnum):
    """What a check needs to reach."""

    NOTHING = "nothing"
    STORAGE = "storage"
    DATA = "data"
    MODEL = "model"
    CLUSTER = "cluster"


@dataclass(frozen=True)
class Note:
    """What a check says, before it is known which one and how long it took."""

    level: Level
    text: str


@dataclass(frozen=True)
class Check:
    """A look at one thing that goes wrong often.

    Attributes:
        name: One word for a program.
        description: One line for a person: what is fine when it says ok.
        access: What it needs to reach.
        run: Looks, and says what it found.
    """

    name: str
    description: str
    access: Access
    run: Callable[[Case], Iterator[Note]]


def ok(text: str) -> Note:
    """Nothing is wrong."""
    return Note("ok", text)


def warning(text: str) -> Note:
    """May be meant so."""
    return Note("warning", text)


def fault(text: str) -> Note:
    """Would stop or falsify the run."""
    return Note("fault", text)


def skipped(text: str) -> Note:
    """Cannot be told from here."""
    return Note("skipped", text)
