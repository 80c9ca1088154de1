"""An option of a launcher, which is read, becomes a variable of the program, has no effect, or is refused."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["ours", "variable", "noted", "refused"]
# Why options that most launchers have are without effect here.
RENDEZVOUS = "Ray Train starts the workers, and they find each other by its address and port"
ONE_LINE = "one line starts all workers, on whichever nodes there are"
NODES = "Ray places the workers on the nodes of its cluster"
CPUS = "the operating system places the workers of a node on its CPUs"
SUPERVISED = "Ray Train starts, watches and stops the workers"
LOGS = "the output of each worker is in the logs of the run"
DEVICES = "Ray decides which device each worker gets"


@dataclass(frozen=True)
class Option:
    """An option of a launcher.

    Attributes:
        names: Names as documented by the launcher; `Launcher.spellings` adds other spellings.
        outcome: "ours": a field of the LaunchLine, set by the launcher's `read`. "variable": in the program's
            environment. "noted": without effect here, and harmless. "refused": the line cannot be followed here.
        text: For a variable, its name; for a noted or refused option, why, and what to write instead.
        read: Converts the text of the value; raises ValueError. None: a switch.
        count: Number of its values, if not one.
        repeated: All values of a repeated option are kept.
        choices: All valid values. Empty: any.
        secret: True if messages must not contain the value.
        ends: True if the program's arguments follow its value.
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
        """The first long name, or the only name."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def key(self) -> str:
        """Key of its value: the name with underscores."""
        return self.name.lstrip("-").replace("-", "_")


def ours(
    *names: str, read: Callable[[str], Any] = str, repeated: bool = False, choices: tuple[str, ...] = ()
) -> Option:
    """Returns an option with a value that a launcher's `read` uses."""
    return Option(names, "ours", read=read, repeated=repeated, choices=choices)


def switch(*names: str) -> Option:
    """Returns an option without a value that a launcher's `read` uses."""
    return Option(names, "ours", read=None)


def variable(name: str, *names: str) -> Option:
    """Returns an option whose value is a variable of the program's environment."""
    return Option(names, "variable", name)


def noted(why: str, options: Iterable[str] = (), switches: Iterable[str] = ()) -> tuple[Option, ...]:
    """Returns options without effect, each with all of its names in one text: `-r --redirects`."""
    return _each("noted", why, options, switches)


def refused(why: str, options: Iterable[str] = (), switches: Iterable[str] = ()) -> tuple[Option, ...]:
    """Returns options that are refused, each with all of its names in one text."""
    return _each("refused", why, options, switches)


def _each(outcome: Outcome, why: str, options: Iterable[str], switches: Iterable[str]) -> tuple[Option, ...]:
    return (
        *(Option(tuple(names.split()), outcome, why) for names in options),
        *(Option(tuple(names.split()), outcome, why, read=None) for names in switches),
    )


def positive(text: str) -> int:
    """Converts a text to an integer of at least one."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def not_negative(text: str) -> int:
    """Converts a text to an integer of at least zero."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number
