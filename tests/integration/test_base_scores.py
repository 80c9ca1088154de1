"""The weights that a run begins with are scored before its first step, once for all runs that begin with them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_second_starts import first, run_folder, stop_after
from tests.trainers.synthetic import config
from trainers.config.schema import TrainConfig
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import RunResult, evaluate
from trainers.pipeline.fit import fit
from trainers.run_folder.attempt_status import scores_of
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
from trainers.scoring.scorer import Scorer, ScoringOptions, SplitScore
from trainers.training import worker


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prepared set of each pass over a set, as they come."""
    seen: list[str] = []
    original = Scorer.score

    def score(self: Scorer, options: ScoringOptions, *rest: Any, **named: Any) -> SplitScore:
        seen.append(self._prepared.key)
        return original(self, options, *rest, **named)

    monkeypatch.setattr(Scorer, "score", score)
    return seen


@pytest.fixture(scope="module")
def pretrained(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a finished run with new weights."""
    folder = tmp_path_factory.mktemp("pretrained")
    wanted = config(first(tones, folder))
    fit(wanted, LocalEngine())
    assert Journal(RunFolder.of(wanted)).read().base is None
    return run_folder(wanted) / "model"


def tuning(tones: Path, folder: Path, pretrained: Path, name: str, **changes: Any) -> TrainConfig:
    model = {"name_or_path": str(pretrained), "language": "English"}
    return config(first(tones, folder) | {"run.name": name, "model": model} | changes)


def another_set(tones: Path) -> Path:
    """Clips that are not in the test set."""
    manifest = tones / "another.csv"
    manifest.write_text("".join((tones / "train.csv").read_text().splitlines(keepends=True)[:11]))
    return manifest


def test_a_run_shows_what_its_result_is_compared_with(
    tones: Path, tmp_path: Path, pretrained: Path, passes: list[str]
) -> None:
    wanted = tuning(tones, tmp_path, pretrained, "tuned")
    result = fit(wanted, LocalEngine())
    folder, passes_with_base = run_folder(wanted), len(passes)
    scores = folder / "base/evaluation"
    of_base = {split: json.loads((scores / f"{split}.json").read_text()) for split in ("validation", "test")}
    for split, totals in of_base.items():
        elsewhere = tuning(tones, tmp_path / "elsewhere", pretrained, "elsewhere")
        assert evaluate(elsewhere, LocalEngine(), model=str(pretrained), split=split).totals == totals
    assert json.loads((folder / "result.json").read_text())["base"] == of_base
    before, after = of_base["test"]["wer"], result.totals["wer"]
    assert result.headline.startswith(f"WER {before:.1f}% → {after:.1f}% (base → tuned) on test")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert (lines[0]["step"], lines[0]["eval_wer"]) == (0, of_base["validation"]["wer"])
    assert lines[0]["eval_loss"] == of_base["validation"]["loss"]
    assert f"| test | WER | {before:.2f}% | {after:.2f}% |" in (folder / "model/README.md").read_text()
    state = Journal(RunFolder.of(wanted)).read()
    known = scores_of(state)
    assert (known["base_test_wer"], known["base_wer"]) == (before, of_base["validation"]["wer"])

    passes.clear()
    # Neither has an effect on scores of pretrained weights.
    again = tuning(tones, tmp_path, pretrained, "again", **{"run.seed": 3, "model.dropout": 0.1})
    assert fit(again, LocalEngine()).base == of_base
    assert len(passes) == passes_with_base - 2

    passes.clear()
    without = fit(tuning(tones, tmp_path, pretrained, "without", **{"evaluate.base": False}), LocalEngine())
    assert not without.base and "→" not in without.headline
    assert len(passes) == passes_with_base - 2


def test_a_resumed_run_keeps_the_scores_of_its_base(
    tones: Path, tmp_path: Path, pretrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tuning(tones, tmp_path, pretrained, "killed")
    stop_after(wanted, 4, monkeypatch)
    before = Journal(RunFolder.of(wanted)).read().base
    assert before is not None
    result: RunResult = fit(wanted, LocalEngine())
    assert Journal(RunFolder.of(wanted)).read().base == before
    assert result.base == before.scores


def test_a_resumed_run_with_another_test_set_compares_both_models_on_it(
    tones: Path, tmp_path: Path, pretrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(tuning(tones, tmp_path, pretrained, "killed"), 4, monkeypatch)
    other = {"data.test": str(another_set(tones))}
    result = fit(tuning(tones, tmp_path, pretrained, "killed", **other), LocalEngine())
    elsewhere = tuning(tones, tmp_path / "alone", pretrained, "alone", **other)
    alone = evaluate(elsewhere, LocalEngine(), model=str(pretrained), split="test")
    assert result.base["test"] == alone.totals
    assert result.totals["utterances"] == result.base["test"]["utterances"]
    assert result.verdict is not None and result.verdict.base == alone.totals["wer"]


def test_initial_weights_that_have_changed_are_compared_only_where_they_were_scored(
    tones: Path, tmp_path: Path, pretrained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_after(tuning(tones, tmp_path, pretrained, "killed"), 4, monkeypatch)
    other = tuning(tones, tmp_path, pretrained, "killed", **{"data.test": str(another_set(tones))})
    monkeypatch.setattr(worker, "weights_identity", lambda *_: "others")
    result = fit(other, LocalEngine())
    assert "the distances of layers from them" in capsys.readouterr().out
    assert result.base.keys() == {"validation"} and result.verdict is None and "→" not in result.headline
    assert not (run_folder(other) / "base/evaluation/test.json").exists()
