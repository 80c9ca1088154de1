"""What a line that starts training says: the program, its environment, and its workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Device = Literal["cpu", "gpu", "hpu"]
# A command is the rest of the line of a launcher that starts whatever it is given, another launcher perhaps.
ProgramKind = Literal["script", "module", "executable", "command"]
# The launcher of a line that has none.
PLAIN = "python"


@dataclass(frozen=True)
class Program:
    """What each worker runs.

    Attributes:
        kind: A Python file, a module as `python -m` takes it, or a file that is no Python.
        name: Path, or dotted name of the module.
        arguments: Its own arguments, as they are in the line.
    """

    kind: ProgramKind
    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workers:
    """How many workers a line asks for.

    Attributes:
        min: Fewest in total; less than `max` where the line is elastic.
        max: Most in total.
        per_node: Of one node, where the line says it.
    """

    min: int
    max: int
    per_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a launcher's own options say.

    Attributes:
        kind: What the launcher takes the rest of the line for.
        assignments: Environment variables that the line sets for the program, in front of it or by `-x`.
        variables: Environment variables that the launcher would set for the program, by its options.
        workers: None: the line does not say it, as with one worker for each device of a machine.
        device: What a worker trains on, where the line says it. None: where it does not.
        max_retries: How often failed workers are started again, where the line says it.
        local_rank_option: The launcher gives the program this option in front of its arguments, with `=` and the rank
            of the worker on its node. None: the program reads LOCAL_RANK.
        notes: What of the line has no effect here, each with the reason.
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
    """A line, understood.

    Attributes:
        launcher: Who would start the workers: torchrun, deepspeed, …; PLAIN: nobody, the program itself is started.
        program: What each worker runs.
        interpreter: The Python that the line names. None: none.
    """

    launcher: str
    program: Program
    interpreter: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """All variables that the program has by its line; a launcher's own replace those in front of it."""
        return {**self.assignments, **self.variables}
