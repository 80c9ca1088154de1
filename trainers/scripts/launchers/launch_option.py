"""An option of a launcher, and which of four it is: ours, a variable of the program, without effect, or refused."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["ours", "variable", "noted", "refused"]
# Why options that most launchers have do nothing here.
RENDEZVOUS = "Ray Train starts the workers, and they find each other by its address and port"
ONE_LINE = "one line starts all workers, on whichever nodes there are"
NODES = "Ray places the workers on the nodes of its cluster"
CPUS = "the operating system places the workers of a node on its CPUs"
SUPERVISED = "Ray Train starts, watches and stops the workers"
LOGS = "the output of each worker is in the logs of the run"
DEVICES = "Ray decides which device each worker gets"


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        names: As the launcher documents them; `Launcher.spellings` adds how else they may be written.
        outcome: "ours": a field of the LaunchLine, by the launcher's `read`. "variable": in the program's environment.
            "noted": it has no effect here and does no harm. "refused": the line cannot mean here what it says.
        text: Of a variable its name; of what is noted or refused, why, and what to write instead.
        read: Of the value, from its text; raises ValueError. None: it is a switch.
        count: How many values it takes, if not one.
        repeated: Each of several is kept.
        choices: All values that there are. Empty: any.
        secret: The value is not repeated in messages.
        ends: What follows its value is the program's.
    """

    names: tuple[str, ...]
    outcome: Outcome
    text: str = ""
    read: Callable[[str], Any] | None = str
    count: int | None = None
    repeated: bool = False
    choices: tuple[str, ...] = ()
    secret: bool = False
    ends: bool = False

    @property
    def name(self) -> str:
        """The first long name, or the only one."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def key(self) -> str:
        """Under which its value is found: the name with underscores."""
        return self.name.lstrip("-").replace("-", "_")


def ours(
    *names: str, read: Callable[[str], Any] = str, repeated: bool = False, choices: tuple[str, ...] = ()
) -> Option:
    """An option with a value that a launcher's `read` knows."""
    return Option(names, "ours", read=read, repeated=repeated, choices=choices)


def switch(*names: str) -> Option:
    """One without a value that a launcher's `read` knows."""
    return Option(names, "ours", read=None)


def variable(name: str, *names: str) -> Option:
    """An option whose value is a variable of the program's environment."""
    return Option(names, "variable", name)


def noted(why: str, options: Iterable[str] = (), switches: Iterable[str] = ()) -> tuple[Option, ...]:
    """Options without effect, each with all of its names in one text: `-r --redirects`."""
    return _each("noted", why, options, switches)


def refused(why: str, options: Iterable[str] = (), switches: Iterable[str] = ()) -> tuple[Option, ...]:
    """Options that are refused, each with all of its names in one text."""
    return _each("refused", why, options, switches)


def _each(outcome: Outcome, why: str, options: Iterable[str], switches: Iterable[str]) -> tuple[Option, ...]:
    return (
        *(Option(tuple(names.split()), outcome, why) for names in options),
        *(Option(tuple(names.split()), outcome, why, read=None) for names in switches),
    )


def positive(text: str) -> int:
    """A whole number of at least one."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def not_negative(text: str) -> int:
    """A whole number of at least zero."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number
