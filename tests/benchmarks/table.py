"""The table of figures, and the facts of the machine that they hold for."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

LIBRARIES = ("ray", "torch", "transformers", "datasets", "accelerate", "jiwer", "soundfile")
HEADER = ("what", "Rayscribe", "peer", "ratio", "spread", "goal", "met")
MET, MISSED, UNDECIDED = "yes", "NO", "spread crosses it"


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        what: What is compared, with its unit, and with what peer where that is not the stock recipe.
        ours: Rayscribe's figure of each turn.
        peer: The peer's, turn by turn next to ours; empty where there is no peer.
        better: "high" or "low": which figure is better. Ratios are such that more than 1 favors Rayscribe.
        least_ratio: The goal as a ratio; None: none.
        most: The goal as a bound of our own figure; None: none.
        digits: Decimals of the figures.
    """

    what: str
    ours: Sequence[float]
    peer: Sequence[float]
    better: str = "high"
    least_ratio: float | None = None
    most: float | None = None
    digits: int = 1

    @property
    def ratios(self) -> list[float]:
        """How many times better Rayscribe is, of each pair of turns: what disturbs both leaves their ratio."""
        pairs = zip(self.ours, self.peer, strict=True)
        return [mine / theirs if self.better == "high" else theirs / mine for mine, theirs in pairs]

    @property
    def met(self) -> str:
        """Whether the goal is met, by all turns or by none; else that they do not say."""
        if self.least_ratio is not None:
            turns = [ratio >= self.least_ratio for ratio in self.ratios]
        elif self.most is not None:
            turns = [figure <= self.most for figure in self.ours]
        else:
            return ""
        return MET if all(turns) else UNDECIDED if any(turns) else MISSED

    def cells(self) -> tuple[str, ...]:
        """As shown: medians, and the lowest and the highest ratio of a turn."""
        goal = f"≥ {self.least_ratio:g}×" if self.least_ratio is not None else ""
        goal = f"≤ {self.most:g}" if self.most is not None else goal
        ours, peer = (f"{median(values):,.{self.digits}f}" if values else "" for values in (self.ours, self.peer))
        ratios = self.ratios if self.peer else []
        ratio = f"{median(ratios):.2f}×" if ratios else ""
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}" if len(ratios) > 1 else ""
        return self.what, ours, peer, ratio, spread, goal, self.met


def render(rows: Sequence[Row]) -> str:
    """The table as Markdown, which a terminal shows well enough."""
    lines = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]

    def line_of(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join([first, *rest])} |"

    rule = (
        "|" + "|".join("-" * (width + 1) + ("-" if column == 0 else ":") for column, width in enumerate(widths)) + "|"
    )
    return "\n".join([line_of(HEADER), rule, *(line_of(row.cells()) for row in rows)])


def machine_facts() -> str:
    """Processor, cores, memory, load, and versions."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    libraries = " · ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return (
        f"machine: {_processor()} · {os.cpu_count()} cores · {memory_bytes / 2**30:.0f} GiB · load at the end {load}\n"
        f"{platform.platform()} · Python {platform.python_version()} · {libraries}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
