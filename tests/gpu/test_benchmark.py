"""The benchmark runs to its end, and counts what it says."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.gpu import benchmark
from tests.gpu.device import NAME, ON_GPU
from tests.gpu.sizes import FULL_CONTEXT_S, OUTPUTS_PER_S, REHEARSAL


def test_it_prints_a_row_for_each_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--steps", "2", "--sizes", "tiny"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [cells[1] for cells in rows[2:]][-1] == "stock, 30 s"
    assert len(rows) == 2 + (4 if ON_GPU else 3)
    assert all(float(cells[3]) > 0 for cells in rows[2:])


def test_flops_are_those_that_torch_counts() -> None:
    model, tokens = REHEARSAL.new_model(), 7
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        inputs = torch.zeros(1, REHEARSAL.mels, 2 * FULL_CONTEXT_S * OUTPUTS_PER_S, device=NAME)
        model(input_features=inputs, decoder_input_ids=torch.zeros(1, tokens, dtype=torch.int64, device=NAME))
    assert REHEARSAL.flops(FULL_CONTEXT_S, tokens) == pytest.approx(3 * counter.get_total_flops(), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "tera"),
    [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA L40S", 362)],
)
def test_the_peak_is_the_device_s(name: str, tera: int) -> None:
    assert benchmark.peak_flops(name) == tera * 1e12


def test_a_device_that_is_not_known_has_none() -> None:
    assert benchmark.peak_flops("cpu") is None
