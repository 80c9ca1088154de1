"""The table of figures, and the facts of the machine that they hold for."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("ray", "torch", "transformers", "datasets", "accelerate", "jiwer", "soundfile")
HEADER = ("what", "Rayscribe", "stock", "ratio", "goal", "met")


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        what: What is compared, with its unit.
        ours: Rayscribe's figure.
        stock: The stock recipe's.
        better: "high" or "low": which figure is better. The ratio is such that more than 1 favors Rayscribe.
        least_ratio: The goal as a ratio; None: none.
        most: The goal as a bound of our own figure; None: none.
        digits: Decimals of the figures.
    """

    what: str
    ours: float
    stock: float
    better: str = "high"
    least_ratio: float | None = None
    most: float | None = None
    digits: int = 1

    @property
    def ratio(self) -> float:
        """How many times better Rayscribe is."""
        return self.ours / self.stock if self.better == "high" else self.stock / self.ours

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        if self.least_ratio is not None:
            return self.ratio >= self.least_ratio
        return self.ours <= self.most if self.most is not None else None

    def cells(self) -> tuple[str, ...]:
        """As shown."""
        goal = f"≥ {self.least_ratio:g}×" if self.least_ratio is not None else ""
        goal = f"≤ {self.most:g}" if self.most is not None else goal
        met = {True: "yes", False: "NO", None: ""}[self.met]
        ours, stock = (f"{value:,.{self.digits}f}" for value in (self.ours, self.stock))
        return self.what, ours, stock, f"{self.ratio:.2f}×", goal, met


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
