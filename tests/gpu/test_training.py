"""Training steps in each precision, with compiled layers, and from where a kill left them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.device import GPUS, ON_GPU
from tests.gpu.runs import KILLED_STEP, SAVE_STEPS, Torchrun, losses, run_here, weights

# Of a loss, over the whole run: 8 and 11 bits of a mantissa.
ROUNDING = {"bf16": 0.02, "fp16": 0.005}
COMPILED_TOLERANCE = 1e-3
only_gpu = pytest.mark.skipif(not ON_GPU, reason="only GPUs do it")


@pytest.fixture(scope="module")
def plain(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run in float32."""
    root = tmp_path_factory.mktemp("plain")
    run_here(corpus, root, "plain", {"model.dropout": 0.0})
    return losses(root, "plain")


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=only_gpu)])
def test_16_bits_train_as_32_do(precision: str, plain: list[float], corpus: Path, tmp_path: Path) -> None:
    run_here(corpus, tmp_path, precision, {"model.dropout": 0.0, f"training.{precision}": True})
    assert losses(tmp_path, precision) == pytest.approx(plain, rel=ROUNDING[precision])
    assert {weight.dtype for weight in weights(tmp_path, precision).values()} == {torch.float32}


@only_gpu
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_attention_trains_the_same(attention: str, plain: list[float], corpus: Path, tmp_path: Path) -> None:
    run_here(corpus, tmp_path, attention, {"model.dropout": 0.0, "model.attn_implementation": attention})
    assert losses(tmp_path, attention) == pytest.approx(plain, rel=COMPILED_TOLERANCE)


@only_gpu
@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_layers_train_the_same(
    checkpointing: bool, plain: list[float], corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {"model.dropout": 0.0, "training.torch_compile": True}
    # One bucket: a shape takes seconds to compile.
    changes |= {"training.gradient_checkpointing": checkpointing, "training.full_context_fraction": 1.0}
    run_here(corpus, tmp_path, "plain", changes | {"training.torch_compile": False})
    run_here(corpus, tmp_path, "compiled", changes)
    assert "layers are compiled" in capsys.readouterr().out
    assert losses(tmp_path, "compiled") == pytest.approx(losses(tmp_path, "plain"), rel=COMPILED_TOLERANCE)
    assert weights(tmp_path, "compiled").keys() == weights(tmp_path, "plain").keys()


def test_a_killed_run_goes_on_bit_for_bit(corpus: Path, tmp_path: Path) -> None:
    # Some of a GPU's sums are made in no fixed order unless it is asked for.
    changes = {"training.training_args": {"full_determinism": True}} if GPUS else {}
    runs = Torchrun(corpus, tmp_path, 1, changes)
    code, said = runs.run(runs.start("whole"), runs.start("killed", kill="step", rank=0, step=KILLED_STEP))
    assert code != 0, said
    code, said = runs.run(runs.start("killed"))
    assert code == 0, said
    assert f"resuming from checkpoint-{SAVE_STEPS}-a1-" in said
    assert losses(tmp_path, "killed") == losses(tmp_path, "whole")
    expected = weights(tmp_path, "whole")
    assert all(torch.equal(weight, expected[key]) for key, weight in weights(tmp_path, "killed").items())
