"""The `rayscribe` command. It does not import torch; the training code is imported when a command needs it."""

import contextlib
import sys
from collections.abc import Sequence

from trainers.distributed.console import opened_for

# Long commands; True if other programs read their standard output, so that progress goes to standard error.
LONG = {"train": False, "prepare": False, "evaluate": False, "transcribe": True, "submit": True, "resume": True}
# With these options, a command prints one document and nothing else.
OF_PROGRAMS = {"--json", "--dry-run"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, see `app`; a long command shows that it has started before slow imports."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    name = words[0] if words else ""
    tells = name in LONG and not (LONG[name] and OF_PROGRAMS.intersection(words))
    with opened_for(words[1:], to_stderr=LONG[name]) if tells else contextlib.nullcontext():
        from jobs.cli.app import main as run  # noqa: PLC0415

        return run(words)
