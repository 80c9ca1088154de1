"""The content of a line that starts training: the program, its environment, and its workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Device = Literal["cpu", "gpu", "hpu"]
ProgramKind = Literal["script", "module", "executable"]
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
        assignments: Environment variables that the line sets for the program, in front or by `-x`.
        variables: Environment variables that the launcher would set for the program, by its options.
        workers: None: not in the line, as with one worker for each device of a machine.
        device: The device of workers. None: not in the line.
        notes: Parts of the line without effect here, each with the reason.
    """

    assignments: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    workers: Workers | None = None
    device: Device | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LaunchLine(Reading):
    """A parsed line.

    Attributes:
        launcher: Name of the launcher: torchrun, deepspeed, …; PLAIN: the program is started without one.
        program: The program of each worker.
        max_retries: How often failed workers are restarted, if in the line.
        local_rank_option: Option that the launcher gives the program in front of its arguments, with `=` and the local
            rank. None: the program reads LOCAL_RANK.
        interpreter: The Python in the line. None: there is none.
    """

    launcher: str
    program: Program
    max_retries: int | None = None
    local_rank_option: str | None = None
    interpreter: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """All variables that the line sets for the program; the launcher's override those in front of the line."""
        return {**self.assignments, **self.variables}
