"""What a check says, and what a check is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Seen = TypeVar("Seen")
MOST_NAMED = 5


class Level(StrEnum):
    """How bad it is. A fault stops the run, now or later; a warning is the user's to judge."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Note:
    """One thing that a check has to say.

    Attributes:
        level: How bad it is.
        text: The thing, the value and the fix; for a skipped check, why.
    """

    level: Level
    text: str


@dataclass(frozen=True)
class Check(Generic[Seen]):
    """A look at one thing that goes wrong often.

    Attributes:
        name: One word for a program.
        description: One line for a person: what is fine when it says ok.
        run: Looks, and says what it found.
    """

    name: str
    description: str
    run: Callable[[Seen], Iterable[Note]]


def ok(text: str) -> Note:
    """Nothing is wrong."""
    return Note(Level.OK, text)


def warning(text: str) -> Note:
    """May be meant so."""
    return Note(Level.WARNING, text)


def fault(text: str) -> Note:
    """Would stop or falsify the run."""
    return Note(Level.FAULT, text)


def skipped(text: str) -> Note:
    """Cannot be told from here."""
    return Note(Level.SKIPPED, text)


def named(names: Sequence[str]) -> str:
    """The first few of many names."""
    return ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
