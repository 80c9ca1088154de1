"""Whole runs that train some of the weights, or an adapter next to them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.integration.test_second_starts import first, run_folder, stop_after
from tests.integration.test_strategies import WEIGHT_TOLERANCE, TorchrunRuns
from tests.trainers.synthetic import config, content
from trainers.config.parts.training_part import AdaptPart
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError, DamagedError, ResumeError, StoppedError
from trainers.models.adaptation.trained_weights import trained_names
from trainers.models.families import family_of
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.fit import fit
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
from trainers.scoring.scorer import CutShortError, Scorer

LORA = {"adapt.method": "lora", "adapt.r": 4, "adapt.alpha": 8, "adapt.dropout": 0.2, "training.learning_rate": 1e-2}
AUGMENTED = {"augment.speed_range": [0.8, 1.25], "augment.gain_db": [-6, 6], "augment.time_masks": 2}
PROCESSOR = {"processor_config.json", "tokenizer.json", "tokenizer_config.json"}
TRAINING = {"optimizer.pt", "scheduler.pt", "trainer_state.json"}
SCORES = {"validation.json", "validation.jsonl"}


def small(tones: Path, folder: Path, changes: Mapping[str, Any]) -> TrainConfig:
    """Eight steps of a very small model with two layers on each side."""
    layers = {"model.encoder_layers": 2, "model.decoder_layers": 2, "model.dropout": 0.1, "model.d_model": 32}
    return config(first(tones, folder) | layers | {"training.learning_rate": 1e-2} | dict(changes))


def begun_with(wanted: TrainConfig) -> Any:
    """The network that a run from scratch began with."""
    processor = run_folder(wanted) / "attempts" / "1" / "processor"
    return family_of(wanted.model).load_recognizer(wanted.model, processor, wanted.run.seed).model


def newest(wanted: TrainConfig) -> Path:
    """Its newest checkpoint."""
    name = Journal(RunFolder.of(wanted)).read().checkpoints[-1].name
    return run_folder(wanted) / "checkpoints" / name


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def differing(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> set[str]:
    """Names of the tensors that are not equal bit for bit."""
    assert set(one) == set(other)
    return {name for name in one if not torch.equal(one[name], other[name])}


def moments(checkpoint: Path) -> int:
    """Numbers in the first moments of a checkpoint's optimizer."""
    states = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"].values()
    return sum(state["exp_avg"].numel() for state in states)


@pytest.mark.long
def test_what_is_not_trained_is_untouched_where_activations_are_recomputed(tones: Path, tmp_path: Path) -> None:
    wanted = small(tones, tmp_path, {"adapt.method": "freeze_encoder", "training.gradient_checkpointing": True})
    fit(wanted, LocalEngine())
    network = begun_with(wanted)
    before = {name: weight.detach() for name, weight in network.named_parameters()}
    after = load_file(run_folder(wanted) / "model" / "model.safetensors")
    assert differing({name: before[name] for name in after}, after) == trained_names(network, wanted.adapt)


@pytest.mark.long
def test_what_is_not_trained_is_untouched_where_the_rest_is_sharded(tones: Path, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    wanted = {**first(tones, tmp_path), "adapt.method": "freeze_encoder", "scaling.num_workers": 2}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content(wanted)))
    runs = TorchrunRuns(recipe, tmp_path / "runs")
    strategies = ("ddp", "zero2", "zero3")
    code, said = runs.run(*(runs.start(name, name) for name in strategies))
    assert code == 0, said
    network = begun_with(config({**wanted, "run.storage_path": str(tmp_path / "runs"), "run.name": "ddp"}))
    names = trained_names(network, AdaptPart(method="freeze_encoder"))
    before = {name: weight.detach() for name, weight in network.named_parameters()}
    ddp = runs.weights("ddp")
    for strategy in strategies:
        after = runs.weights(strategy)
        assert differing({name: before[name] for name in after}, after) == names, strategy
        assert max(float((after[name] - ddp[name]).abs().max()) for name in names) < WEIGHT_TOLERANCE, strategy


@pytest.fixture(scope="module")
def with_adapter(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """The config of a finished run with an adapter next to new weights."""
    wanted = small(tones, tmp_path_factory.mktemp("lora"), LORA)
    fit(wanted, LocalEngine())
    return wanted


def test_an_adapter_s_checkpoint_holds_nothing_of_the_base(with_adapter: TrainConfig) -> None:
    checkpoint = newest(with_adapter)
    adapter = {"adapter_config.json", "adapter_model.safetensors", "base.json", "config.json", "generation_config.json"}
    assert files(checkpoint) == adapter | PROCESSOR | TRAINING | SCORES | {"MANIFEST.json"}
    weights = load_file(checkpoint / "adapter_model.safetensors")
    assert all("lora_" in name for name in weights)
    assert moments(checkpoint) == sum(weight.numel() for weight in weights.values())
    own = json.loads((checkpoint / "base.json").read_text())["folder"]
    assert [path.name for path in checkpoint.parent.glob("base-*")] == [own], "stored once for all checkpoints"
    stored, new = load_file(checkpoint.parent / own / "model.safetensors"), begun_with(with_adapter).state_dict()
    assert not differing(stored, {name: new[name] for name in stored})


def test_a_merged_model_is_the_base_with_the_adapter_added(with_adapter: TrainConfig) -> None:
    model = run_folder(with_adapter) / "model"
    assert {"adapter/adapter_config.json", "adapter/adapter_model.safetensors", "adapter/base.json"} < files(model)
    assert not {"adapter_config.json", "base.json"} & files(model), "transformers would load the adapter once more"
    merged, base = load_file(model / "model.safetensors"), begun_with(with_adapter).state_dict()
    moved = differing(merged, {name: base[name] for name in merged})
    adapter = load_file(model / "adapter" / "adapter_model.safetensors")
    ends = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in adapter}
    assert moved == {f"{name}.weight" for name in ends}
    for name in ends:
        low, high = (adapter[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
        wanted = base[f"{name}.weight"] + high @ low * (8 / 4)
        assert torch.allclose(merged[f"{name}.weight"], wanted, atol=1e-6)


def test_a_merged_model_and_a_checkpoint_score_the_same(with_adapter: TrainConfig, tmp_path: Path) -> None:
    elsewhere = with_adapter.model_copy(
        update={"run": with_adapter.run.model_copy(update={"storage_path": str(tmp_path)})}
    )
    folder, best = run_folder(with_adapter), json.loads((run_folder(with_adapter) / "result.json").read_text())
    models = [folder, folder / "model", folder / "checkpoints" / best["best_checkpoint"]]
    results = [evaluate(elsewhere, LocalEngine(), model=str(model), split="test") for model in models]
    assert [result.totals for result in results] == [results[0].totals] * 3
    assert results[0].totals == {**best["test"], "split": "test"}
    validation = evaluate(elsewhere, LocalEngine(), model=str(folder), split="validation").totals
    assert validation["wer"] == best["validation"]["eval_wer"]


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"training.gradient_checkpointing": True}, id="checkpointing"),
        pytest.param(AUGMENTED, id="augmented"),
    ],
)
def test_a_killed_run_with_an_adapter_ends_with_the_same_weights(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    calm, killed = (small(tones, tmp_path / name, LORA | changes) for name in ("calm", "killed"))
    fit(calm, LocalEngine())
    stop_after(killed, 4, monkeypatch)
    fit(killed, LocalEngine())
    for name in ("adapter_model.safetensors", "optimizer.pt", "validation.jsonl"):
        assert (newest(calm) / name).read_bytes() == (newest(killed) / name).read_bytes(), name
    models = [run_folder(wanted) / "model" / "model.safetensors" for wanted in (calm, killed)]
    assert models[0].read_bytes() == models[1].read_bytes()


@pytest.mark.long
def test_a_checkpoint_that_a_stop_left_without_a_score_gets_the_one_of_an_undisturbed_run(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, stopped = (small(tones, tmp_path / name, LORA) for name in ("calm", "stopped"))
    stop_after(calm, 4, monkeypatch)

    def cut_short(*args: Any, **kwargs: Any) -> Any:
        raise CutShortError

    with monkeypatch.context() as patched:
        patched.setattr(Scorer, "score", cut_short)
        with pytest.raises(StoppedError):
            fit(stopped, LocalEngine())
    (left,) = Journal(RunFolder.of(stopped)).read().checkpoints
    assert (left.step, left.metrics) == (4, {})
    stop_after(stopped, 8, monkeypatch)
    undisturbed, again = (
        next(item for item in Journal(RunFolder.of(wanted)).read().checkpoints if item.step == 4 and item.metrics)
        for wanted in (calm, stopped)
    )
    assert again.metrics == undisturbed.metrics
    assert again.files["validation.jsonl"] == undisturbed.files["validation.jsonl"]
    for wanted in (calm, stopped):
        fit(wanted, LocalEngine())
    assert (newest(calm) / "adapter_model.safetensors").read_bytes() == (
        newest(stopped) / "adapter_model.safetensors"
    ).read_bytes()


@pytest.mark.long
def test_gradient_checkpointing_changes_no_gradient_of_an_adapter(tones: Path, tmp_path: Path) -> None:
    plain, saving = (
        small(tones, tmp_path / str(on), LORA | {"training.gradient_checkpointing": on}) for on in (False, True)
    )
    for wanted in (plain, saving):
        fit(wanted, LocalEngine())
    one, other = (load_file(newest(wanted) / "adapter_model.safetensors") for wanted in (plain, saving))
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-5


@pytest.mark.parametrize(
    "changes",
    [pytest.param(LORA, id="lora"), pytest.param({"adapt.method": "full"}, id="full", marks=pytest.mark.long)],
)
def test_a_run_begins_with_an_adapter_s_checkpoint(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_adapter: TrainConfig, changes: dict[str, Any]
) -> None:
    best = json.loads((run_folder(with_adapter) / "result.json").read_text())["best_checkpoint"]
    source = run_folder(with_adapter) / "checkpoints" / best
    later = small(tones, tmp_path, {**changes, "run.resume": f"from:{source}", "training.learning_rate": 1e-9})
    stop_after(later, 4, monkeypatch)
    fit(later, LocalEngine())
    model = load_file(run_folder(later) / "model" / "model.safetensors")
    merged = load_file(run_folder(with_adapter) / "model" / "model.safetensors")
    assert max(float((model[name] - merged[name]).abs().max()) for name in model) < 1e-6


def test_what_the_model_does_not_have_is_refused_before_preparing(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for changes, words in (
        ({**LORA, "adapt.target_modules": ["q_prj"]}, "no linear layer of whisper has a name that ends with q_prj"),
        ({"adapt.method": "last_n_layers", "adapt.n": 3}, r"adapt\.n is 3, but model\.encoder\.layers has 2"),
    ):
        with pytest.raises(ConfigError, match=words):
            fit(small(tones, tmp_path, changes), LocalEngine())
    assert "prepare" not in capsys.readouterr().out


@pytest.mark.long
def test_a_run_in_a_bucket_keeps_and_finds_its_base_there(
    tones: Path, tmp_path: Path, s3_bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    wanted = small(tones, tmp_path, LORA | {"run.storage_path": f"{s3_bucket}/lora"})
    stop_after(wanted, 4, monkeypatch)
    fit(wanted, LocalEngine())
    folder = RunFolder.of(wanted)
    (base,) = (name for name in folder.storage.list_folders("checkpoints") if "/base-" in name)
    assert folder.storage.exists(f"{base}/model.safetensors")
    best = folder.read_json("result.json")
    assert best is not None
    checkpoint = folder.storage.url(f"checkpoints/{best['best_checkpoint']}")
    assert evaluate(wanted, LocalEngine(), model=checkpoint, split="test").totals["wer"] == best["test"]["wer"]
    card = folder.storage.read_bytes("model/README.md").decode()
    assert "Trained from new weights with Rayscribe, adapt.method lora, " in card


def test_a_checkpoint_that_was_copied_without_its_base_is_not_scored(with_adapter: TrainConfig, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(newest(with_adapter), copied)
    elsewhere = with_adapter.model_copy(
        update={"run": with_adapter.run.model_copy(update={"storage_path": str(tmp_path)})}
    )
    with pytest.raises(DamagedError, match=rf"the model {copied}: .*/base-\w+: is missing, and the run began with it"):
        evaluate(elsewhere, LocalEngine(), model=str(copied), split="test")


def test_an_adapter_whose_base_has_changed_is_not_continued(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = small(tones, tmp_path, LORA)
    stop_after(wanted, 4, monkeypatch)
    (base,) = newest(wanted).parent.glob("base-*/model.safetensors")
    content = bytearray(base.read_bytes())
    content[-1] ^= 1
    base.write_bytes(content)
    with pytest.raises(ResumeError, match="has other weights than the run began with"):
        fit(wanted, LocalEngine())


def test_another_method_is_another_experiment(tones: Path, with_adapter: TrainConfig) -> None:
    for changes in ({"adapt.r": 8}, {"adapt.target_modules": ["q_proj"]}):
        other = with_adapter.model_copy(
            update={"adapt": with_adapter.adapt.model_copy(update={k.partition(".")[2]: v for k, v in changes.items()})}
        )
        with pytest.raises(ResumeError, match=next(iter(changes))):
            fit(other, LocalEngine())
