"""What a worker that runs a program is given, and what the ranks of a group agree on before they start it."""

from dataclasses import dataclass
from pathlib import Path

from trainers.config.schema import ScriptConfig
from trainers.run_folder.journal import State


@dataclass(frozen=True)
class ScriptTask:
    """A run of a program.

    Attributes:
        attempt: Its number.
        folder: Where the program lies and runs on this machine. None: it was submitted, so that each node has the
            package, of which it makes a copy.
        package: What identifies the program's files, for what is prepared once for them.
    """

    config: ScriptConfig
    attempt: int
    folder: Path | None
    package: str


@dataclass(frozen=True)
class GroupStart:
    """What rank 0 has found in the journal when it opened the group.

    Attributes:
        state: Of the journal, with the checkpoints that the program may go on from.
        restarts: Groups of this attempt before this one.
    """

    state: State
    restarts: int
