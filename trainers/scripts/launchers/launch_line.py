"""The content of a line that starts training: the program, its environment, and its workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Device = Literal["cpu", "gpu", "hpu"]
# A `command` is the rest of the line of a launcher that starts any command, such as another launcher.
ProgramKind = Literal["script", "module", "executable", "command"]
# The launcher of a line without one.
PLAIN = "python"


@dataclass(frozen=True)
class Program:
    """The program of each worker.

    Attributes:
        kind: A Python file, a module for `python -m`, or an executable that is not Python.
        name: Path, or dotted name of the module.
        arguments: Its own arguments, as in the line.
    """

    kind: ProgramKind
    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workers:
    """The number of workers in a line.

    Attributes:
        min: Minimum in total; less than `max` in an elastic line.
        max: Maximum in total.
        per_node: Number on one node, if the line has it.
    """

    min: int
    max: int
    per_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The meaning of a launcher's own options.

    Attributes:
        kind: Kind of the program in the rest of the line.
        assignments: Environment variables that the line sets for the program, in front or by `-x`.
        variables: Environment variables that the launcher would set for the program, by its options.
        workers: None: not in the line, as with one worker for each device of a machine.
        device: The device of workers. None: not in the line.
        max_retries: How often failed workers are restarted, if in the line.
        local_rank_option: Option that the launcher gives the program in front of its arguments, with `=` and the local
            rank. None: the program reads LOCAL_RANK.
        notes: Parts of the line without effect here, each with the reason.
    """

    kind: ProgramKind = "script"
    assignments: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    workers: Workers | None = None
    device: Device | None = None
    max_retries: int | None = None
    local_rank_option: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LaunchLine(Reading):
    """A parsed line.

    Attributes:
        launcher: Name of the launcher: torchrun, deepspeed, …; PLAIN: the program is started without one.
        program: The program of each worker.
        interpreter: The Python in the line. None: there is none.
    """

    launcher: str
    program: Program
    interpreter: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """All variables that the line sets for the program; the launcher's override those in front of the line."""
        return {**self.assignments, **self.variables}
