"""Charts as static SVG with the colors of the page: light, dark and print."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pygal
from markupsafe import Markup
from pygal.etree import etree
from pygal.style import Style

POINTS = 400
BINS = 12
# Lines differ in more than their color.
DASHES = ("", "10, 5", "3, 4")
STYLE = Style(
    background="transparent",
    plot_background="transparent",
    foreground="var(--text)",
    foreground_strong="var(--text)",
    foreground_subtle="var(--line)",
    guide_stroke_color="var(--line)",
    major_guide_stroke_color="var(--line)",
    colors=("var(--series-1)", "var(--series-2)", "var(--series-3)"),
    font_family="system-ui, sans-serif",
    label_font_size=16,
    major_label_font_size=16,
    legend_font_size=17,
    title_font_size=17,
    opacity=1,
    stroke_opacity=1,
    stroke_width=3,
)
SHAPE: Mapping[str, Any] = {
    "style": STYLE,
    "width": 640,
    "height": 340,
    "js": (),
    "disable_xml_declaration": True,
    "legend_at_bottom": True,
    "show_x_guides": False,
    # Maximum number of grid lines, above which their labels overlap.
    "max_scale": 8,
    "margin": 8,
}

Row = Mapping[str, Any]
Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Chart:
    """A chart, and its content in words."""

    svg: Markup
    caption: str


def curves(metrics: Sequence[Row]) -> list[Chart]:
    """Returns charts of metrics.jsonl by step, see `series_of`."""
    return [_curve(title, series) for title, series in series_of(metrics)]


def series_of(metrics: Sequence[Row]) -> Iterator[tuple[str, Mapping[str, Points]]]:
    """Yields title and series, by step, of loss, error rates, learning rate, speed and padding, each if known."""
    full_context = {name.upper(): f"eval_full_context_{name}" for name in ("wer", "cer", "ser")}
    wanted: tuple[tuple[str, Mapping[str, str], Callable[[float], float]], ...] = (
        ("Loss, nats per label", {"training": "loss", "validation": "eval_loss"}, float),
        ("Error rates on validation, percent", {"WER": "eval_wer", "CER": "eval_cer", "SER": "eval_ser"}, float),
        ("Error rates on validation at the full context, percent", full_context, float),
        ("Learning rate", {"learning rate": "learning_rate"}, float),
        ("Clips per second", {"clips/s": "clips_per_s"}, float),
        ("Padding, percent of the input", {"padding": "padding"}, lambda part: 100 * part),
    )
    for title, fields, scale in wanted:
        series = {name: _series(metrics, field, scale) for name, field in fields.items()}
        found = {name: points for name, points in series.items() if points}
        if found:
            yield title, found


def durations(split: str, values_s: Sequence[float]) -> Chart:
    """Returns a histogram of the clip durations of a split."""
    longest = max(values_s)
    step = next(step for step in (0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 600, math.inf) if longest / step <= BINS)
    counts = [0] * (int(longest / step) + 1) if math.isfinite(step) else [0]
    for value in values_s:
        counts[int(value / step)] += 1
    chart = pygal.Bar(show_legend=False, x_title="seconds", **SHAPE)
    chart.x_labels = [f"{place * step:g}" for place in range(len(counts))]
    chart.add("clips", counts)
    text = f"Durations of {split}: {len(values_s):,} clips, from {min(values_s):.2f} to {longest:.2f} s"
    return Chart(_svg(chart, text), f"Durations of {split}: clips by length, with a bar's least seconds below it")


def _series(metrics: Sequence[Row], field: str, scale: Callable[[float], float]) -> Points:
    points = [(row["step"], scale(row[field])) for row in metrics if isinstance(row.get(field), int | float)]
    every = -(-len(points) // POINTS) if points else 1
    # Keeps the last point.
    return points[::-1][::every][::-1]


def _curve(title: str, series: Mapping[str, Points]) -> Chart:
    chart = pygal.XY(
        show_legend=len(series) > 1,
        x_title="step",
        x_value_formatter=lambda step: f"{step:,.0f}",
        value_formatter=lambda value: f"{value:.4g}",
        **SHAPE,
    )
    for (name, points), dashes in zip(series.items(), DASHES, strict=False):
        chart.add(name, points, show_dots=len(points) < 3, stroke_style={"width": 3, "dasharray": dashes})
    text = in_words(title, series)
    return Chart(_svg(chart, text), text)


def in_words(title: str, series: Mapping[str, Points]) -> str:
    """Returns `Loss, nats per label: training from 5.7 at step 25 to 0.6 at step 200; validation …`."""
    return f"{title}: {'; '.join(f'{name} {_ends(points)}' for name, points in series.items())}"


def _ends(points: Points) -> str:
    (first, before), (last, after) = points[0], points[-1]
    if first == last:
        return f"{after:.4g} at step {last:,}"
    return f"from {before:.4g} at step {first:,} to {after:.4g} at step {last:,}"


def _svg(chart: Any, text: str) -> Markup:
    """Returns a chart's drawing without its script, as an image that `text` describes."""
    root = chart.render_tree()
    for parent in [*root.iter()]:
        for child in [*parent]:
            # Ids are used only by the script, and would clash with those of other drawings in the page.
            child.attrib.pop("id", None)
            if str(child.tag).endswith(("script", "title", "desc")):
                parent.remove(child)
    root.set("role", "img")
    root.set("aria-label", text)
    return Markup(etree.tostring(root, encoding="unicode"))
