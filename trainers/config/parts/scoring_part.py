"""The config's scoring part: the user's own metrics. See `schema`."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from trainers.config.parts.part import Part, refuse_url
from trainers.metrics.known_metrics import known_metrics

# Names that metrics.jsonl and the Trainer already use after `eval_`.
RESERVED = ("loss", "runtime", "samples_per_second", "steps_per_second", "refused")
RESERVED_PREFIX = "full_context"
SOURCES = (
    "module:Class of an evaluate.Metric that driver and workers can import, or the absolute path of a metric's script "
    "or folder on every node"
)
CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
# The name of a metric on the Hub, with an owner unless evaluate itself has it.
HUB_NAME = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)?")


def _refuse_reserved(name: str) -> str:
    if name in (*RESERVED, *known_metrics()) or name.startswith(RESERVED_PREFIX):
        raise ValueError(f"{name} is the name of one of Rayscribe's own scores: give the metric another name")
    return name


def _refuse_unclear(source: str) -> str:
    refuse_url(source, SOURCES)
    if not (source.startswith("/") or CLASS.fullmatch(source) or HUB_NAME.fullmatch(source)):
        raise ValueError(f"{source!r} is not a metric: give the {SOURCES}")
    return source


MetricName = Annotated[
    str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=50), AfterValidator(_refuse_reserved)
]
MetricSource = Annotated[str, AfterValidator(_refuse_unclear)]


class ScoringPart(Part):
    """Metrics in addition to the loss and the built-in ones."""

    metrics: dict[MetricName, MetricSource] = Field(
        default_factory=dict,
        description="Metrics of evaluate, each under a name of your choice: `{mer: /shared/metrics/mer, deletions: "
        "'rayscribe.trainers.scoring.metrics:ErrorRates'}`. A metric is a " + SOURCES + "; or a name on the Hub, if it "
        "is in each node's cache, since nothing is downloaded. Its code is executed. Its number is `eval_<name>` in "
        "metrics.jsonl, and can rank checkpoints.",
    )

    def source_of(self, attribute: str | None) -> str | None:
        """Returns the source of the metric by which an attribute ranks checkpoints; None if it is not in `metrics`."""
        return self.metrics.get(str(attribute).removeprefix("eval_"))
