"""What a check is and what it finds, for `trainers.inspection` and `jobs.preflight` alike. Imports no torch."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from trainers.errors import RayscribeError

Checked = TypeVar("Checked")
MAX_NAMED = 5


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
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    check: str = ""
    level: Level
    text: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Check(Generic[Checked]):
    """A check of one thing that goes wrong often.

    Attributes:
        name: One word for a program.
        description: One line for a person: what is right when it is ok.
        run: Checks, and yields what it finds.
    """

    name: str
    description: str
    run: Callable[[Checked], Iterable[Finding]]


def ok(text: str) -> Finding:
    """Nothing is wrong."""
    return Finding(level=Level.OK, text=text)


def warning(text: str) -> Finding:
    """It may be intended."""
    return Finding(level=Level.WARNING, text=text)


def problem(text: str) -> Finding:
    """It would stop or falsify the run."""
    return Finding(level=Level.ERROR, text=text)


def skipped(text: str) -> Finding:
    """It cannot be checked from here."""
    return Finding(level=Level.SKIPPED, text=text)


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
        yield finding.model_copy(update={"check": check.name, "seconds": round(time.monotonic() - began, 3)})
        began = time.monotonic()


def _findings(check: Check[Checked], checked: Checked) -> Iterator[Finding]:
    try:
        yield from check.run(checked)
    except RayscribeError as error:
        yield problem(str(error))
    except Exception as error:
        yield warning(f"the check itself failed ({type(error).__name__}: {error}); check this by hand")


def named(names: Sequence[str]) -> str:
    """The first few of many names, joined by commas."""
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
