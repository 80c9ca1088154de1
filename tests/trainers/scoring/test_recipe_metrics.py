"""Metrics that a recipe names: from where they come, and what is refused by their names."""

import socket
import sys
from pathlib import Path
from typing import Any

import evaluate
import pytest
from evaluate.loading import init_dynamic_modules

from tests.trainers.config import advice
from tests.trainers.synthetic import config, content
from trainers.errors import ConfigError, ScoringError
from trainers.scoring.error_rate import score_texts
from trainers.scoring.recipe_metrics import TRIAL_HYPOTHESES, TRIAL_REFERENCES, RecipeMetrics

HYPOTHESES, REFERENCES = ["the hat sat", "", "uh"], ["the cat sat", "yes", "ah so"]
SCRIPT = """
import datasets
import evaluate
from .own_length import length

class Metric(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        features = datasets.Features({{"predictions": text, "references": text}})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {result}
"""
LENGTH = "def length(texts):\n    return sum(map(len, texts))\n"
RATIO = '{"ratio": length(predictions) / length(references), "other": 1}'


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError(f"a metric asked for the network: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def write_script(folder: Path, result: str) -> Path:
    """A metric as evaluate has them: a folder with a script of its name, which may import the files next to it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own_length.py").write_text(LENGTH)
    script = folder / f"{folder.name}.py"
    script.write_text(SCRIPT.format(result=result))
    return script


def problem_of(source: object, name: str = "own") -> str:
    """Why a metric is refused before anything is prepared."""
    with pytest.raises(ConfigError) as refused:
        RecipeMetrics({name: str(source)}).check()
    assert str(refused.value).startswith(f"scoring.metrics.{name}: {source} ")
    return str(refused.value)


def test_a_script_and_its_folder_and_a_class_give_their_numbers(tmp_path: Path) -> None:
    script = write_script(tmp_path / "ratio", RATIO)
    counts = "trainers.scoring.metrics:ErrorRates"
    metrics = RecipeMetrics({"ratio": str(script), "deletions": counts, "substitutions": counts})
    metrics.check()
    expected = score_texts(HYPOTHESES, REFERENCES)[0].counts["wer"]
    for _ in range(2):
        found = metrics.compute(HYPOTHESES, REFERENCES)
        assert found == {
            "ratio": 13 / 19,
            "deletions": expected.deletions,
            "substitutions": expected.substitutions,
        }
    folder = RecipeMetrics({"ratio": str(script.parent)})
    assert folder.compute(HYPOTHESES, REFERENCES) == {"ratio": 13 / 19}


def test_a_class_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_script(tmp_path / "metrics_of_mine", RATIO)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    metrics = RecipeMetrics({"ratio": "metrics_of_mine.metrics_of_mine:Metric"})
    assert metrics.compute(HYPOTHESES, REFERENCES) == {"ratio": 13 / 19}


@pytest.mark.parametrize("result", ["4.5", "{'whatever': 4.5}", "__import__('numpy').float32(4.5)"])
def test_a_result_of_one_number_needs_no_name(tmp_path: Path, result: str) -> None:
    metrics = RecipeMetrics({"own": str(write_script(tmp_path / "one", result))})
    assert metrics.compute(HYPOTHESES, REFERENCES) == {"own": 4.5}


def test_random_numbers_of_a_metric_do_not_move(tmp_path: Path) -> None:
    script = write_script(tmp_path / "drawn", "__import__('numpy').random.random()")
    first, second = (RecipeMetrics({"own": str(script)}).compute(HYPOTHESES, REFERENCES) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("float('nan')", "returns nan, which is not a finite number"),
        ("{'own': float('inf')}", "returns inf, which is not a finite number"),
        ("{'one': 1, 'two': 2}", "returns dict of one, two, in which no number is found"),
        ("{'own': 'high'}", "in which no number is found"),
        ("None", "returns NoneType, in which no number is found"),
        ("predictions[9]", "failed: IndexError: "),
    ],
)
def test_what_gives_no_number_is_refused_by_name(tmp_path: Path, result: str, why: str) -> None:
    script = write_script(tmp_path / "odd", result)
    assert why in problem_of(script)
    with pytest.raises(ScoringError, match=r"^scoring\.metrics\.own: "):
        RecipeMetrics({"own": str(script)}).compute(HYPOTHESES, REFERENCES)


def test_what_divides_by_the_length_of_an_empty_hypothesis_is_found_before_training(tmp_path: Path) -> None:
    script = write_script(tmp_path / "divides", "sum(1 / len(text) for text in predictions)")
    assert "failed: ZeroDivisionError" in problem_of(script)
    assert "" in TRIAL_HYPOTHESES
    assert "" not in TRIAL_REFERENCES


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("/nowhere/metric.py", "FileNotFoundError: there is no /nowhere/metric.py"),
        ("no_such_module:Metric", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("trainers.scoring.metrics:NoSuch", "has no attribute 'NoSuch'"),
        ("trainers.scoring.error_rate:Score", "TypeError: it is not a subclass of evaluate.Metric"),
        ("surely_not_cached", "is not cached in"),
        ("someone/surely_not_cached", "is not cached in"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_name_without_a_download(source: str, why: str) -> None:
    problem = problem_of(source)
    assert why in problem
    assert "nothing is downloaded" in problem


def test_a_script_without_one_metric_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "none.py"
    script.write_text("from evaluate import Metric\n")
    assert "has 0 metrics, not one" in problem_of(script)


def test_a_metric_of_the_hub_is_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # evaluate puts it into a package of its own, here in another folder.
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "evaluate_modules"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = Path(init_dynamic_modules()) / "metrics" / "evaluate-metric--ratio" / ("0" * 64)
    write_script(folder, RATIO).rename(folder / "ratio.py")
    for parent in (folder, folder.parent, folder.parent.parent):
        (parent / "__init__.py").touch()
    assert RecipeMetrics({"ratio": "ratio"}).compute(HYPOTHESES, REFERENCES) == {"ratio": 13 / 19}


def refused(changes: dict[str, Any]) -> str:
    return advice.refused(content(changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"scoring.metrics": {"wer": "own:Metric"}}, "wer is the name of one of Rayscribe's own scores"),
        ({"scoring.metrics": {"full_context_mer": "own:Metric"}}, "is the name of one of Rayscribe's own scores"),
        ({"scoring.metrics": {"Own": "own:Metric"}}, "scoring.metrics"),
        (
            {"scoring.metrics": {"own": "metrics/own.py"}},
            "'metrics/own.py' is not a metric: give the module:Class of an",
        ),
        ({"scoring.metrics": {"own": "https://example.org/own.py"}}, "module:Class of an"),
        ({"scoring.metric": {"own": "own:Metric"}}, "did you mean scoring.metrics"),
        (
            {"checkpoint.checkpoint_score_attribute": "eval_own"},
            "eval_own is not a score that ranks checkpoints: give one of eval_wer",
        ),
        ({"checkpoint.checkpoint_score_order": "max"}, "an error rate is better when it is smaller"),
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(changes: dict[str, Any], why: str) -> None:
    assert why in refused(changes)


def test_a_metric_may_rank_checkpoints_in_either_order() -> None:
    ranking = {"scoring.metrics": {"own": "own:Metric"}, "checkpoint.checkpoint_score_attribute": "eval_own"}
    for order in ("min", "max"):
        assert config({**ranking, "checkpoint.checkpoint_score_order": order}).checkpoint.score_attribute == "eval_own"
