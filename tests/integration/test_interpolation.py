"""A run whose weights are interpolated exports the share that it has chosen, with its scores."""

import json
from pathlib import Path

from peft import PeftModel
from safetensors.torch import load_file
from torch import allclose, equal, lerp
from transformers import WhisperForConditionalGeneration

from jobs.cli.app import main
from tests.integration.test_base_scores import pretrained, tuning
from tests.integration.test_second_starts import run_folder
from trainers.models.families import family_of_folder
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.fit import fit

__all__ = ["pretrained"]


def test_the_exported_weights_are_those_of_the_chosen_share(tones: Path, tmp_path: Path, pretrained: Path) -> None:
    wanted = tuning(tones, tmp_path, pretrained, "between", **{"checkpoint.interpolate": [0.25, 0.5]})
    result = fit(wanted, LocalEngine())
    folder = run_folder(wanted)
    stored = json.loads((folder / "result.json").read_text())
    share, candidates = stored["weights"]["share"], stored["weights"]["candidates"]
    assert [each["share"] for each in candidates] == [0.25, 0.5, 1.0]
    chosen = next(each for each in candidates if each["share"] == share)
    assert stored["validation"]["eval_wer"] == chosen["eval_wer"] == min(each["eval_wer"] for each in candidates)
    base = load_file(pretrained / "model.safetensors")
    tuned = load_file(folder / "checkpoints" / stored["best_checkpoint"] / "model.safetensors")
    for name, weight in load_file(folder / "model/model.safetensors").items():
        assert equal(weight, lerp(base[name], tuned[name], share) if share < 1 else tuned[name]), name
    validation = json.loads((folder / "evaluation/validation.json").read_text())
    assert validation["wer"] == chosen["eval_wer"]
    elsewhere = tuning(tones, tmp_path / "elsewhere", pretrained, "elsewhere")
    scored = evaluate(elsewhere, LocalEngine(), model=str(folder / "model"), split="test").totals
    assert scored["wer"] == result.totals["wer"]


def test_an_adapter_is_scaled_to_the_weights_that_are_exported(tones: Path, tmp_path: Path, pretrained: Path) -> None:
    changes = {"checkpoint.interpolate": [0.25], "adapt": {"method": "lora"}, "training.learning_rate": 1e-2}
    wanted = tuning(tones, tmp_path, pretrained, "scaled", **changes)
    fit(wanted, LocalEngine())
    model = run_folder(wanted) / "model"
    exported, base = load_file(model / "model.safetensors"), load_file(pretrained / "model.safetensors")
    assert not all(equal(weight, base[name]) for name, weight in exported.items())
    network = WhisperForConditionalGeneration.from_pretrained(pretrained)
    merged = PeftModel.from_pretrained(network, model / "adapter").merge_and_unload().state_dict()
    for name, weight in exported.items():
        assert allclose(merged[name], weight, rtol=0, atol=1e-6), name


def test_the_average_of_checkpoints_is_scored_next_to_the_best(tones: Path, tmp_path: Path, pretrained: Path) -> None:
    wanted = tuning(tones, tmp_path, pretrained, "average", **{"checkpoint.average": 2})
    fit(wanted, LocalEngine())
    folder = run_folder(wanted)
    stored = json.loads((folder / "result.json").read_text())
    names = {each["of"]: each["eval_wer"] for each in stored["weights"]["candidates"]}
    assert [*names] == ["the best checkpoint", "the average of 2 checkpoints"]
    assert stored["validation"]["eval_wer"] == min(names.values()) == names[stored["weights"]["of"]]
    kept = [load_file(path) for path in (folder / "checkpoints").glob("checkpoint-*/model.safetensors")]
    assert len(kept) == 2
    if stored["weights"]["of"] != "the best checkpoint":
        for name, weight in load_file(folder / "model/model.safetensors").items():
            assert equal(weight, ((kept[0][name].double() + kept[1][name].double()) / 2).float()), name
    _check_averages_by_hand(folder, pretrained, tmp_path)


def _check_averages_by_hand(folder: Path, pretrained: Path, tmp_path: Path) -> None:
    """`rayscribe average` averages the checkpoints of a run, and a run with the weights that it began with."""
    assert main(["average", str(folder), "--output", str(tmp_path / "of_checkpoints")]) == 0
    kept = [load_file(path) for path in (folder / "checkpoints").glob("checkpoint-*/model.safetensors")]
    for name, weight in load_file(tmp_path / "of_checkpoints/model.safetensors").items():
        assert equal(weight, ((kept[0][name].double() + kept[1][name].double()) / 2).float()), name
    line = ["average", str(pretrained), str(folder), "--shares", "0.25,0.75", "--output", str(tmp_path / "of_both")]
    assert main(line) == 0
    base, tuned = load_file(pretrained / "model.safetensors"), load_file(folder / "model/model.safetensors")
    for name, weight in load_file(tmp_path / "of_both/model.safetensors").items():
        assert equal(weight, (base[name].double() * 0.25 + tuned[name].double() * 0.75).float()), name
    for made in ("of_checkpoints", "of_both"):
        assert family_of_folder(tmp_path / made).open_exported(tmp_path / made).encode_labels(["one"])
    recipe = json.loads((tmp_path / "of_both/average.json").read_text())
    assert [*recipe["models"].values()] == [0.25, 0.75]
