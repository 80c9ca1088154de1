"""The lines of these benchmarks: what was measured, the goal, and whether it is met."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One measurement.

    Attributes:
        what: What was measured, with its unit.
        value: The figure.
        least: The goal as a lower bound. None: none.
        most: The goal as an upper bound. None: none.
        digits: Decimals.
    """

    what: str
    value: float
    least: float | None = None
    most: float | None = None
    digits: int = 2

    def cells(self) -> tuple[str, str, str, str]:
        """As shown."""
        goal, met = "", ""
        if self.least is not None:
            goal, met = f"≥ {self.least:g}", "yes" if self.value >= self.least else "NO"
        if self.most is not None:
            goal, met = f"≤ {self.most:g}", "yes" if self.value <= self.most else "NO"
        return self.what, f"{self.value:,.{self.digits}f}", goal, met


def print_figures(figures: Sequence[Figure]) -> None:
    """Prints a table, as Markdown."""
    print("| what | measured | goal | met |\n|---|---:|---:|---:|")
    for figure in figures:
        print(f"| {' | '.join(figure.cells())} |")


def peak_gb() -> float:
    """The most memory that this process has had, mapped files included. Gigabytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (peak,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024 / 1e9
