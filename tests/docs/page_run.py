"""Runs the commands of a page in their order, and looks for the lines that the page shows after each.

REGENERATE_PAGES=1 writes what is printed now into the page, in place of the lines of the same shape.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.docs.console_blocks import found_in, steps_of, with_output


@dataclass(frozen=True)
class PageRun:
    """Where a page's commands run.

    Attributes:
        folder: The reader's folder.
        variables: The environment.
        shown_as: What the page shows in the place of paths of this machine.
        done: How commands begin that have been done already, such as an installation.
        longest_s: For how long one command may run.
    """

    folder: Path
    variables: Mapping[str, str]
    shown_as: Mapping[Path, str]
    done: tuple[str, ...]
    longest_s: float = 900.0

    def run(self, page: Path) -> None:
        """Runs all that the page's consoles show after `$ `.

        Raises:
            AssertionError: a command has failed, or not printed what the page shows.
        """
        outputs = []
        for step in steps_of(page.read_text(encoding="utf-8")):
            printed = [] if step.command.startswith(self.done) else self.lines_of(step.command)
            outputs.append(found_in(step.shown, printed))
        if os.environ.get("REGENERATE_PAGES"):
            page.write_text(with_output(page, outputs), encoding="utf-8")

    def lines_of(self, command: str) -> list[str]:
        """What a command prints, with the places that a reader would have."""
        code, printed = self.result_of(command)
        assert code == 0, f"{command}\n{printed}"
        for real, shown in self.shown_as.items():
            printed = printed.replace(str(real), shown)
        return [line.rstrip() for line in printed.splitlines()]

    def result_of(self, command: str) -> tuple[int, str]:
        """Exit code and output of a command in the reader's folder."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=dict(self.variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=self.longest_s,
        )
        return done.returncode, done.stdout
