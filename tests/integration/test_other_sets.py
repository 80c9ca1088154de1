"""Sets of evaluate.also are scored before the training and after it, and judged like the test set."""

import json
from pathlib import Path

import pytest

from tests.integration.test_base_scores import pretrained, tuning
from tests.integration.test_second_starts import run_folder
from trainers.errors import DataError, RefusedError
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.fit import fit

__all__ = ["pretrained"]


def test_another_set_has_scores_of_both_models_and_a_verdict(tones: Path, tmp_path: Path, pretrained: Path) -> None:
    other = tones / "other.csv"
    other.write_bytes((tones / "train.csv").read_bytes())
    also = {"evaluate.also": {"elsewhere": str(other)}}
    wanted = tuning(tones, tmp_path, pretrained, "also", **also)
    result = fit(wanted, LocalEngine())
    folder = run_folder(wanted)
    before, after = (json.loads((folder / part / "evaluation/elsewhere.json").read_text()) for part in ("base", "."))
    # The limit of the run's own hypotheses, 8, is not that of other sets.
    changes = {"data.test": str(other), "decode.max_length": 225}
    alone = tuning(tones, tmp_path / "alone", pretrained, "alone", **changes)
    for model, totals in ((str(pretrained), before), (str(folder / "model"), after)):
        expected = evaluate(alone, LocalEngine(), model=model, split="test").totals
        assert {**expected, "split": "elsewhere"} == totals
    judgment = result.verdicts["elsewhere"].judgment
    assert f"elsewhere: WER {before['wer']:.1f}% → {after['wer']:.1f}% ({judgment})" in result.headline
    assert json.loads((folder / "result.json").read_text())["verdicts"].keys() == {"test", "elsewhere"}


def test_its_rates_may_refuse_checkpoints(
    tones: Path, tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        "evaluate.also": {"elsewhere": str(tones / "train.csv")},
        "checkpoint.refuse_if": {"elsewhere.cer": "> base - 1000"},
    }
    with pytest.raises(RefusedError, match=r"elsewhere\.cer is \d+\.\d\d, more than"):
        fit(tuning(tones, tmp_path, pretrained, "gated", **changes), LocalEngine())
    assert "the checkpoint of step 4 is refused: elsewhere.cer is" in capsys.readouterr().out


def test_a_manifest_that_is_missing_is_named_by_its_field(tones: Path, tmp_path: Path, pretrained: Path) -> None:
    wanted = tuning(tones, tmp_path, pretrained, "missing", **{"evaluate.also": {"far": str(tmp_path / "no.csv")}})
    with pytest.raises(
        DataError, match=r"^evaluate\.also\.far: .*no\.csv: no such file; .*\(--set evaluate\.also\.far="
    ):
        fit(wanted, LocalEngine())
