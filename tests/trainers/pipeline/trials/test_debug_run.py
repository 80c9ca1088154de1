from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainers.synthetic import config, write_corpus
from trainers.data.sources import fingerprint
from trainers.data.sources.known_sources import open_sources
from trainers.errors import ConfigError, Interruption, StoppedError
from trainers.pipeline.splits import open_config_mixed
from trainers.pipeline.trials import debug_run
from trainers.pipeline.trials.debug_run import debug, left_out, small_config

GPU = {"training.fp16": True, "training.training_args": {"tf32": True, "adam_beta1": 0.8}, "scaling.use_gpu": True}


def test_a_recipe_is_cut_to_two_steps_on_one_cpu(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        **GPU,
        "data": {"demo": {}},
        "hub.push": True,
        "training.max_steps": None,
        "training.num_train_epochs": 3,
        "training.warmup_steps": 500,
        "training.learning_rate": 0.03,
        "training.report_to": ["wandb", "tensorboard"],
        "run.resume": "from:/runs/a/checkpoints/b",
        "scaling.resources_per_worker": {"GPU": 1},
    }
    small = small_config(config(changes), tmp_path)
    training = small.training
    assert (training.max_steps, training.save_steps, training.scoring_steps, training.warmup_steps) == (2, 1, 1, 0)
    assert (training.fp16, training.learning_rate, training.report_to) == (False, 0.03, ["tensorboard"])
    assert training.training_args == {"adam_beta1": 0.8}
    assert (small.scaling.num_workers, small.scaling.use_gpu, small.scaling.worker_resources) == (1, False, {"CPU": 1})
    assert (small.run.resume, small.run.storage_path, small.data.cache_dir) == ("auto", str(tmp_path / "runs"), None)
    assert not small.hub.push
    assert small.data.demo is not None
    assert small.data.demo.train_utterances == 16


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, []),
        ({"run.resume": "auto"}, []),
        ({"strategy.name": "fsdp", "scaling.use_gpu": True}, ["scaling", "strategy"]),
        ({"run.resume": "from:/runs/a/checkpoints/b"}, ["run.resume"]),
        (GPU, ["scaling", "training.fp16", "training.training_args.tf32"]),
    ],
)
def test_what_is_not_tried_is_named(changes: dict[str, Any], names: list[str]) -> None:
    assert left_out(config({"data": {"demo": {}}, **changes})) == names


def test_what_nothing_reads_in_the_recipe_itself_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    unread = {"training.lr_scheduler_type": "constant", "training.warmup_steps": 5}
    assert debug(config({"data": {"demo": {}}, **unread})) == ConfigError.exit_code
    assert "model failed with exit code" in (said := capfd.readouterr().err)
    assert "training.warmup_steps is 5" in said


@pytest.mark.parametrize("stopped", [StoppedError("checkpoint-1 is in /tmp/rayscribe-debug-x"), Interruption()])
def test_one_that_is_stopped_names_nothing_that_is_deleted_with_it(
    stopped: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise stopped

    monkeypatch.setattr(debug_run, "_run", stop)
    with pytest.raises(Interruption) as ended:
        debug(config({"data": {"demo": {}}}))
    assert ended.value.left == "nothing of a debug run is kept"


def test_it_computes_in_one_thread_and_gives_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(debug_run, "_run", lambda *_: counts.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert debug(config({"data": {"demo": {}}})) == 0
        assert (counts, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_manifests_are_cut_with_what_they_say_of_each_clip(tmp_path: Path) -> None:
    for name, count in (("train", 20), ("validation", 3)):
        write_corpus(tmp_path, ["čaj, da"] * count, durations_s=[0.2] * count, name=name)
    segments = [f"validation/000.wav,x,{row / 20},0.05" for row in range(3)]
    (tmp_path / "validation.csv").write_text("\n".join(["path,text,offset,duration", *segments]))
    data = {split: str(tmp_path / f"{split}.csv") for split in ("train", "validation")}
    whole = config({"data": data})
    (tmp_path / "few").mkdir()
    small = small_config(whole, tmp_path / "few")
    options = whole.run.storage_options
    before, after = (open_sources(each.data, storage_options=options) for each in (whole, small))
    assert [len(source.table) for source in after] == [16, 3]
    for long, short in zip(before, after, strict=True):
        assert short.table.to_pylist() == long.table.slice(0, len(short.table)).to_pylist()


def test_recordings_to_mix_are_not_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train", "validation", "noise"):
        write_corpus(tmp_path, ["da"] * 3, durations_s=[0.2] * 3, name=name)
    data = {split: str(tmp_path / f"{split}.csv") for split in ("train", "validation")}
    small = small_config(config({"data": data, "augment.noise_manifest": str(tmp_path / "noise.csv")}), tmp_path)
    read: list[str] = []
    monkeypatch.setattr(fingerprint, "sha256_of", read.append)
    (noise,) = open_config_mixed(small)
    assert len(noise.table) == 3
    assert read == []


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("train", "train[:16]"),
        ("train+validation", "train[:16]+validation[:16]"),
        ("train[10%:20%]", "train[:16]"),
        ("all", "all"),
        ("train.clean.100(pct1_dropremainder)", "train.clean.100[:16]"),
    ],
)
def test_splits_of_a_data_set_are_cut(name: str, cut: str, tmp_path: Path) -> None:
    data = {"dataset": {"name": "a/b", "train_split": name, "test_split": None}}
    small = small_config(config({"data": data}), tmp_path)
    assert small.data.dataset is not None
    assert (small.data.dataset.train_split, small.data.dataset.test_split) == (cut, None)
    assert small.data.dataset.validation_split == "validation[:4]"
