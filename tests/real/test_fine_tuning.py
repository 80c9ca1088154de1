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
from tests.real.measure import EXPERIMENTS, at_own_context, tuning
from trainers.config.parts.run_part import BASE_SCORES
from trainers.config.schema import TrainConfig
from trainers.errors import RefusedError
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.scoring.comparison.verdict import Judgment, Verdict

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]
# WER in points on another set, and the share of the gain that is kept for it.
MOST_LOST, LEAST_KEPT = 0.5, 0.8
Weights = Callable[[str], Path]


def result_of(wanted: TrainConfig) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(
        Path(str(wanted.run.storage_path), str(wanted.run.name), "result.json").read_text()
    )
    return result


def test_a_training_that_helps_is_better_at_little_cost_elsewhere(
    tmp_path: Path, real_weights: Weights, speech_data: Path
) -> None:
    changes = {
        **EXPERIMENTS["digits-short-3.75e-05"].changes,
        "training.eval_steps": 40,
        "training.save_steps": 40,
        "evaluate.also": {"librispeech": LIBRISPEECH.write(tmp_path / "manifests", 0)["test"]},
        "evaluate.guard": "default",
        "checkpoint.interpolate": [0.3, 0.5, 0.7],
        "checkpoint.refuse_if": {
            "librispeech.wer": f"> base + {MOST_LOST}",
            "silence.words_per_minute": "> base + 2",
        },
    }
    wanted = tuning(tmp_path, real_weights("tiny.en"), "digits", DIGITS, changes=changes)
    line = fit(wanted, LocalEngine()).headline
    result = result_of(wanted)
    verdict, base, guards = Verdict.of_json_dict(result["verdicts"]["test"]), result["base"], result["guards"]
    assert verdict.judgment is Judgment.BETTER and verdict.interval is not None and verdict.interval.high < 0
    assert "(base → tuned) on test" in line and "better: WER" in line
    assert f"librispeech: WER {base['librispeech']['wer']:.1f}% → " in line
    assert "silence: " in line and "noise: " in line and "new_speakers: WER" in line
    assert guards["librispeech"]["wer"] <= base["librispeech"]["wer"] + MOST_LOST
    assert guards["silence"]["words_per_minute"] <= base["silence"]["words_per_minute"] + 2
    # The exported weights keep most of what the best candidate gained on the validation set.
    before = at_own_context(base["validation"])["wer"]
    gains = {each["name"]: before - each["eval_full_context_wer"] for each in result["weights"]["candidates"]}
    assert gains[result["weights"]["name"]] >= LEAST_KEPT * max(gains.values())


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


@pytest.mark.parametrize("corpus", ["librispeech_mini", "ljspeech_mini", "fsdd"])
def test_the_recipe_of_init_is_not_worse_or_says_so(
    corpus: str, tmp_path: Path, real_weights: Weights, speech_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "speech.yaml"
    line = [
        "init",
        str(speech_data / corpus),
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
