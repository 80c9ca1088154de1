"""A page's commands with what they printed, and the shape of a line: what of it is the same on every machine."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.docs.page_commands import PROMPT

LEFT_OUT = "…"
CONSOLE = re.compile(r"^```console\n(?P<content>.*?)^```$", re.MULTILINE | re.DOTALL)
# What differs from run to run: bars, hashes, times and sizes with their units, and numbers.
VARIES = re.compile(
    r"[█░▁▂▃▄▅▆▇]+|\b(?=[a-z]*\d)[0-9a-f]{6,}\b|\d+(?:[.,:]\d+)*(?: ?(?:ms|s|min|h|B|KB|MB|GB|KiB|MiB|GiB)\b| ?%)?"
)


@dataclass(frozen=True)
class Step:
    """A command, and the lines that the page shows after it."""

    command: str
    shown: tuple[str, ...]


def steps_of(page: str) -> Iterator[Step]:
    """The commands of a page's consoles, in their order."""
    for block in CONSOLE.finditer(page):
        for part in re.split(r"^\$ ", block["content"], flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            yield Step(command, tuple(shown))


def shape_of(line: str) -> str:
    """A line without what varies."""
    return " ".join(re.sub(r"(?:# ?)+", "#", VARIES.sub("#", line)).split())


def found_in(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """For each line of a page the one that a command has printed now; all of them where the page shows none.

    Raises:
        AssertionError: a line has no counterpart of its shape, in the page's order.
    """
    if not shown:
        return [*printed]
    found, at = [], 0
    for line in shown:
        if line == LEFT_OUT:
            found.append(line)
            continue
        shapes = [shape_of(each) for each in printed[at:]]
        assert shape_of(line) in shapes, f"not printed: {line}\nprinted:\n" + "\n".join(printed[at:])
        at += shapes.index(shape_of(line)) + 1
        found.append(printed[at - 1])
    return found


def with_output(page: Path, outputs: Sequence[Sequence[str]]) -> str:
    """The page's text, with other lines after its commands."""
    remaining = iter(outputs)

    def filled(block: re.Match[str]) -> str:
        steps = [*steps_of(block[0])]
        lines = [line for step in steps for line in (PROMPT + step.command, *next(remaining))]
        return "\n".join(["```console", *lines, "```"])

    return CONSOLE.sub(filled, page.read_text(encoding="utf-8"))
