"""What pages draw: the course of the error rate, and attempts on a time line, as numbers of an SVG."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.model import Attempt
from trainers.scoring.report.charts import Points, in_words

# Of the box in which a curve, and a bar, is drawn.
WIDTH, HEIGHT = 1000, 200
# A bar is seen, however short the attempt was.
LEAST_WIDTH = 4


@dataclass(frozen=True)
class Curves:
    """Series in one box, each as points of a polyline, between the least and the greatest value of all.

    Attributes:
        lines: Name and points of each.
        caption: What is drawn, in words.
    """

    title: str
    lines: Sequence[tuple[str, str]]
    least: float
    greatest: float
    caption: str


@dataclass(frozen=True)
class Bar:
    """An attempt on the time line of its run, from left to right."""

    attempt: Attempt
    left: int
    width: int


def curves_of(title: str, series: Mapping[str, Points]) -> Curves | None:
    """The curves by step; None where no series has two values, which would be no course."""
    finite = {name: [(x, y) for x, y in points if math.isfinite(y)] for name, points in series.items()}
    found = {name: points for name, points in finite.items() if len(points) > 1}
    if not found:
        return None
    steps = [x for points in found.values() for x, _ in points]
    values = [y for points in found.values() for _, y in points]
    begin, least = min(steps), min(values)
    across, up = WIDTH / max(1, max(steps) - begin), HEIGHT / ((max(values) - least) or 1.0)
    lines = [
        (name, " ".join(f"{(x - begin) * across:.1f},{HEIGHT - (y - least) * up:.1f}" for x, y in points))
        for name, points in found.items()
    ]
    return Curves(title, lines, least, max(values), in_words(title, found))


def bars_of(attempts: Sequence[Attempt], now_s: float) -> list[Bar]:
    """Each attempt's bar; the line begins with the first one, and ends with the last one or now."""
    if not attempts:
        return []
    begin_s = min(attempt.created_s for attempt in attempts)
    ends_s = [attempt.ended_s if attempt.ended_s is not None else now_s for attempt in attempts]
    span_s = max(max(ends_s) - begin_s, 1e-9)
    bars = []
    for attempt in attempts:
        width = max(LEAST_WIDTH, round(WIDTH * attempt.duration_s(now_s) / span_s))
        left = round(WIDTH * (attempt.created_s - begin_s) / span_s)
        bars.append(Bar(attempt, min(max(left, 0), WIDTH - LEAST_WIDTH), width))
    return bars
