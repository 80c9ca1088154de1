"""The environment of a program, and the words that start it. Pure."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainers.config.parts.script_part import ScriptPart

# Of Ray itself and of this package, whose values mean nothing to a program, or would make its own Ray join ours.
_OURS = re.compile(r"(RAY|RAYSCRIBE)_.*|__.*")
# Where Ray unpacks packages, in a path of its PYTHONPATH.
_UNPACKED = "runtime_resources"
# Where a program finds what was prepared once for all nodes.
DATA = "RAYSCRIBE_DATA"


def program_words(part: ScriptPart, words: Sequence[str], work: Path, local_rank: int | None = None) -> list[str]:
    """The interpreter, where there is one, and the words of the command with their placeholders replaced.

    A `local_rank` is given to the program as it asks for it.
    """
    if part.local_rank_option is not None and local_rank is not None:
        start = 2 if words[0] == "-m" else 1
        words = [*words[:start], f"{part.local_rank_option}={local_rank}", *words[start:]]
    if not part.is_python:
        return list(words)
    python = part.python or sys.executable
    # A virtual environment in the package.
    is_path = "/" in python and not python.startswith("/")
    return [str(work / python) if is_path else python, *words]


def program_environment(
    inherited: Mapping[str, str], given: Mapping[str, str], torchrun: Mapping[str, str], work: Path
) -> dict[str, str]:
    """What a program sees: the node's and the job's own variables, the recipe's, and torchrun's.

    Args:
        inherited: Of the worker.
        given: `script.env`, with placeholders replaced, and the accelerator's; a relative PYTHONPATH is one in `work`.
        torchrun: See `ranks.RankContext.environment`.
        work: Where the program runs.
    """
    kept = {name: value for name, value in inherited.items() if not _OURS.fullmatch(name)}
    paths = [str(work)]
    paths += [str(work / path) for path in given.get("PYTHONPATH", "").split(os.pathsep) if path]
    # Without the packages that Ray has put there for the worker.
    paths += [path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path and _UNPACKED not in path]
    paths = [path for path in dict.fromkeys(paths) if _UNPACKED not in path or path.startswith(str(work))]
    return {
        # Lines are followed as they come.
        "PYTHONUNBUFFERED": "1",
        **kept,
        **torchrun,
        **given,
        "PYTHONPATH": os.pathsep.join(paths),
    }
