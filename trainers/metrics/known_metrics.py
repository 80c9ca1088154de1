"""The metrics that are always scored. To add one, write a `Metric` in a new file, and add its line here.

Other distributions add metrics by entry points `rayscribe.metrics`; docs/scoring.md.
"""

from collections.abc import Mapping
from functools import cache

from trainers.metrics.error_rates import CharacterErrorRate, SentenceErrorRate, WordErrorRate
from trainers.metrics.metric import Metric
from trainers.plugins import with_plugins

WER, CER = WordErrorRate(), CharacterErrorRate()
OURS = (WER, CER, SentenceErrorRate())


@cache
def known_metrics() -> Mapping[str, Metric]:
    """Returns the metrics by name, in the order in which scores show them."""
    return with_plugins("rayscribe.metrics", {metric.name: metric for metric in OURS})
