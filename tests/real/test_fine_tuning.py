"""Fine-tuning of OpenAI's weights is judged, refused and moderated as docs/how-to/not-worse.md says.

Each test takes minutes on two cores.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.cli.app import main
from tests.real.corpora import DIGITS, LIBRISPEECH
from tests.real.measure import EXPERIMENTS, at_own_context, counts_of, tuning
from trainers.config.parts.run_part import BASE_SCORES
from trainers.config.schema import TrainConfig
from trainers.errors import RefusedError
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit

pytestmark = pytest.mark.long
Weights = Callable[[str], Path]


def result_of(wanted: TrainConfig) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(
        Path(str(wanted.run.storage_path), str(wanted.run.name), "result.json").read_text()
    )
    return result


def test_a_training_that_helps_is_better_and_its_cost_elsewhere_is_told(
    tmp_path: Path, real_weights: Weights, speech_data: Path
) -> None:
    also = {"librispeech": LIBRISPEECH.write(tmp_path / "manifests", 0)["test"]}
    changes = {**EXPERIMENTS["digits-short-guard-3.75e-05"].changes, "evaluate.also": also}
    wanted = tuning(tmp_path, real_weights("tiny.en"), "digits", DIGITS, changes=changes)
    line = fit(wanted, LocalEngine()).headline
    result = result_of(wanted)
    verdict = result["verdicts"]["test"]
    assert verdict["judgment"] == "better" and verdict["interval"]["high"] < 0
    assert "(base → tuned) on test" in line and "better: WER" in line
    assert f"librispeech: WER {result['base']['librispeech']['wer']:.1f}% → " in line
    assert "silence: " in line and "noise: " in line and "new_speakers: WER" in line


def test_a_learning_rate_of_a_thousandth_is_refused(tmp_path: Path, real_weights: Weights, speech_data: Path) -> None:
    changes = {
        "training.learning_rate": 1e-3,
        "training.max_steps": 8,
        "training.warmup_steps": 1,
        "training.eval_steps": 4,
        "training.save_steps": 4,
        "checkpoint.refuse_if": {"validation.wer": "> base"},
    }
    wanted = tuning(tmp_path, real_weights("tiny.en"), "too-fast", LIBRISPEECH, changes=changes)
    with pytest.raises(RefusedError, match=r"checkpoint\.refuse_if refuses every checkpoint"):
        fit(wanted, LocalEngine())
    assert [*Path(tmp_path / "runs/too-fast/checkpoints").glob("checkpoint-*")], "the last one is kept"
    assert [*Path(tmp_path / "runs" / BASE_SCORES).iterdir()]


def test_weights_between_keep_most_of_the_gain_at_little_cost(
    tmp_path: Path, real_weights: Weights, speech_data: Path
) -> None:
    also = {"librispeech": LIBRISPEECH.write(tmp_path / "manifests", 0)["test"]}
    changes = {**EXPERIMENTS["digits-short-between-3.75e-05"].changes, "evaluate.also": also}
    changes["checkpoint.refuse_if"] = {"librispeech.wer": "> base + 0.5"}
    wanted = tuning(tmp_path, real_weights("tiny.en"), "between", DIGITS, changes=changes)
    fit(wanted, LocalEngine())
    result = result_of(wanted)
    before, after = (counts_of(at_own_context(each)) for each in (result["base"]["test"], result["test"]))
    assert after[0] <= 0.4 * before[0]
    assert result["guards"]["librispeech"]["wer"] <= result["base"]["librispeech"]["wer"] + 0.5


@pytest.mark.parametrize("corpus", ["librispeech_mini", "ljspeech_mini", "fsdd"])
def test_the_recipe_of_init_is_not_worse_or_says_so(
    corpus: str, tmp_path: Path, real_weights: Weights, speech_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "speech.yaml"
    line = [
        "init",
        str(speech_data / corpus / "train.csv"),
        "--model",
        str(real_weights("tiny.en")),
        "--out",
        str(recipe),
    ]
    assert main(line) == 0
    capsys.readouterr()
    assert main(["train", str(recipe), "--no-ray", "--set", f"run.storage_path={tmp_path / 'runs'}"]) == 0
    (folder,) = (each for each in (tmp_path / "runs").iterdir() if (each / "result.json").exists())
    verdict = json.loads((folder / "result.json").read_text())["verdicts"]["test"]
    told = capsys.readouterr().out
    assert verdict["judgment"] in ("better", "not told apart") or f"{verdict['judgment']}: WER" in told
