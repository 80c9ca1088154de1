"""DDP, ZeRO-2, ZeRO-3 and FSDP2 with one process a GPU: the same losses, and going on after a kill."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import WhisperForConditionalGeneration

from tests.gpu.device import GPUS, ON_GPU
from tests.gpu.runs import KILLED_STEP, SAVE_STEPS, Torchrun, losses, weights

# Without a threshold the model is too small for a weight of it to be sharded.
ZERO_3 = {"strategy.name": "deepspeed", "strategy.zero_stage": 3, "strategy.stage3_param_persistence_threshold": 0}
STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("DistributedDataParallel", {}),
    "zero2": ("DeepSpeedEngine", {"strategy.name": "deepspeed", "strategy.zero_stage": 2}),
    "zero3": ("DeepSpeedEngine", ZERO_3),
    "fsdp": ("FSDPWhisperForConditionalGeneration", {"strategy.name": "fsdp"}),
}
SHARDED = [name for name in STRATEGIES if name != "ddp"]
# Over the run, relative; gradients are added in another order.
TOLERANCE = 1e-4
PROCESSES = max(GPUS, 1) if ON_GPU else 2


def skip_reason(name: str) -> str | None:
    """Why a strategy cannot be tried here; None where it can."""
    if name == "fsdp" and not ON_GPU:
        return "FSDP2 needs GPUs"
    if name.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        return "the package deepspeed is not installed"
    return None


def params(names: Sequence[str]) -> list[Any]:
    reasons = {name: skip_reason(name) for name in names}
    return [
        pytest.param(name, marks=() if reason is None else pytest.mark.skip(reason=reason))
        for name, reason in reasons.items()
    ]


def runs_of(name: str, corpus: Path, root: Path) -> Torchrun:
    return Torchrun(corpus, root, PROCESSES, {"model.dropout": 0.0, "model.d_model": 64, **STRATEGIES[name][1]})


@pytest.fixture(scope="module")
def ddp(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run under DDP is."""
    root = tmp_path_factory.mktemp("ddp")
    runs = runs_of("ddp", corpus, root)
    code, said = runs.run(runs.start("ddp"))
    assert code == 0, said
    return root


@pytest.mark.parametrize("name", params(SHARDED))
def test_a_strategy_trains_as_ddp_does(name: str, ddp: Path, corpus: Path, tmp_path: Path) -> None:
    runs = runs_of(name, corpus, tmp_path)
    code, said = runs.run(runs.start(name))
    assert code == 0, said
    assert runs.wrapped(name)["type"] == STRATEGIES[name][0]
    assert losses(tmp_path, name) == pytest.approx(losses(ddp, "ddp"), rel=TOLERANCE)
    opened: Any = WhisperForConditionalGeneration.from_pretrained(tmp_path / name / "model", output_loading_info=True)
    assert not any(opened[1].values()), opened[1]


@pytest.mark.parametrize("name", params(SHARDED))
def test_a_killed_run_goes_on(name: str, corpus: Path, tmp_path: Path) -> None:
    runs = runs_of(name, corpus, tmp_path)
    killed = runs.start("killed", kill="step", rank=PROCESSES - 1, step=KILLED_STEP)
    code, said = runs.run(runs.start("whole"), killed)
    assert code != 0, said
    code, said = runs.run(runs.start("killed"))
    assert code == 0, said
    assert f"resuming from checkpoint-{SAVE_STEPS}-a1-" in said
    assert losses(tmp_path, "killed") == pytest.approx(losses(tmp_path, "whole"), rel=TOLERANCE)
    expected = weights(tmp_path, "whole")
    for key, weight in weights(tmp_path, "killed").items():
        assert torch.allclose(weight, expected[key], rtol=0, atol=TOLERANCE), key


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", params(["ddp", *SHARDED]))
def test_several_gpus_train_as_one_does(name: str, corpus: Path, tmp_path: Path) -> None:
    batch = {"training.global_batch_size": 4 * PROCESSES, "training.per_device_train_batch_size": 4 * PROCESSES}
    several, one = runs_of(name, corpus, tmp_path), runs_of("ddp", corpus, tmp_path)
    for run, runs in (("several", several), ("one", replace(one, processes=1))):
        sized = replace(runs, changes={**runs.changes, **batch})
        code, said = sized.run(sized.start(run))
        assert code == 0, said
    assert losses(tmp_path, "several") == pytest.approx(losses(tmp_path, "one"), rel=TOLERANCE)
