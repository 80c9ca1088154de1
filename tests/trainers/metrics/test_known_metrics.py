"""The table of metrics: what a metric says of itself, and one of another distribution next to ours."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainers.synthetic import config
from trainers.errors import ConfigError
from trainers.metrics.known_metrics import OURS, known_metrics
from trainers.metrics.metric import EditCounts, Metric
from trainers.scoring.error_rate import score_utterance, total
from trainers.scoring.ranking import score_lines

SYLLABLES = """
from trainers.metrics.metric import EditCounts, Metric

class SyllableAccuracy(Metric):
    name, units, prefix, order = "syllable_accuracy", "syllables", "syllable_", "max"

    def cut(self, text: str) -> list[str]:
        return text.replace(" ", "-").split("-")

    def rate(self, counts: EditCounts) -> float | None:
        return None if counts.rate is None else 100 - counts.rate

syllable_accuracy = SyllableAccuracy()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with a metric of its own."""
    metadata = tmp_path / "syllables-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: syllables\nVersion: 1.0\n")
    entry = "syllable_accuracy = of_syllables:syllable_accuracy"
    (metadata / "entry_points.txt").write_text(f"[rayscribe.metrics]\n{entry}\n")
    (tmp_path / "of_syllables.py").write_text(SYLLABLES)
    monkeypatch.syspath_prepend(str(tmp_path))
    known_metrics.cache_clear()
    yield
    known_metrics.cache_clear()


@pytest.mark.parametrize("metric", OURS, ids=lambda metric: metric.name)
def test_cut_units_of_a_text_are_those_that_are_counted(metric: Metric) -> None:
    score = score_utterance("u", " ab  c ", "ab", None).counts[metric.name]
    assert score.reference_length == len(metric.cut(" ab  c ")) == {"wer": 2, "cer": 4, "ser": 1}[metric.name]
    assert metric.rate(score + score) == metric.rate(score)
    assert metric.rate(EditCounts()) is None


def test_a_metric_of_another_distribution_is_scored_and_shown_next_to_ours(installed: None) -> None:
    scores = [score_utterance("a", "ma-ma ta", "ma-pa ta", 1.0), score_utterance("b", "ta", "ta", 1.0)]
    assert scores[0].to_json_dict().items() >= {"words": 2, "syllables": 3, "syllable_substitutions": 1}.items()
    score = total(scores, utterances=2)
    assert score.rates == {"wer": pytest.approx(100 / 3), "cer": 10.0, "ser": 50.0, "syllable_accuracy": 75.0}
    content = score.to_json_dict()
    assert (content["syllables"], content["syllable_substitutions"], content["syllable_accuracy"]) == (4, 1, 75.0)
    lines = [*score_lines({**content, "normalizer": "none", "normalizer_version": "1"}, "sr")]
    assert lines[3] == "  4 syllables: 0 insertions, 0 deletions, 1 substitutions"
    assert lines[4] == "  CER 10.0% · SER 50.0% · SYLLABLE_ACCURACY 75.0% · 0 empty references"


def test_it_ranks_checkpoints_in_its_own_order(installed: None) -> None:
    ranking = {"checkpoint.checkpoint_score_attribute": "eval_syllable_accuracy"}
    wanted = config({**ranking, "checkpoint.checkpoint_score_order": "max"})
    assert wanted.checkpoint.score_attribute == "eval_syllable_accuracy"
    with pytest.raises(ConfigError, match="eval_syllable_accuracy is better when it is larger: set it to max"):
        config(ranking)
    with pytest.raises(ConfigError, match=r"syllable_accuracy is the name of one of Rayscribe's own scores"):
        config({"scoring.metrics": {"syllable_accuracy": "own:Metric"}})


def test_it_ranks_no_checkpoints_where_it_is_not_installed() -> None:
    with pytest.raises(
        ConfigError, match="eval_syllable_accuracy is not a score that ranks checkpoints: give one of eval_wer, eval_ce"
    ):
        config({"checkpoint.checkpoint_score_attribute": "eval_syllable_accuracy"})
