"""The benchmark runs to its end, and counts what it says."""

from collections import Counter

import pytest

from tests.gpu import benchmark
from tests.gpu.device import ON_GPU
from tests.gpu.sizes import MEL_FRAMES_PER_S, REHEARSAL, SIZES, flops


def test_it_prints_a_row_for_each_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--steps", "2", "--sizes", "whisper-tiny"]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    recipes = {size.name: len(benchmark.recipes_of(size)) for size in (SIZES[:1] if ON_GPU else REHEARSAL)}
    assert Counter(cells[0] for cells in rows[2:]) == {
        name: (2 if ON_GPU else 1) + count for name, count in recipes.items()
    }
    assert all(float(cells[2]) > 0 for cells in rows[2:])


@pytest.mark.parametrize("edge_s", [4.0, 30.0])
def test_flops_of_whisper_are_those_of_its_sizes(edge_s: float) -> None:
    """Kaplan et al. 2020, Scaling Laws, table 1, with the products of attention, and cross-attention as another."""
    size, tokens = REHEARSAL[0], 7
    d, heard, mels, vocabulary = 64, edge_s * MEL_FRAMES_PER_S / 2, 80, 51_865
    layer = 2 * (4 * d * d + 2 * d * 4 * d)
    convolutions = 2 * 3 * d * (mels * 2 * heard + d * heard)
    encoder = heard * layer + 4 * heard**2 * d
    cross = 2 * 2 * d * d * (heard + tokens) + 4 * heard * tokens * d
    decoder = tokens * layer + 4 * tokens**2 * d + cross
    assert flops(size, edge_s, tokens) == 3 * (convolutions + encoder + decoder + 2 * tokens * d * vocabulary)


@pytest.mark.parametrize(
    ("name", "tera"),
    [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA L40S", 362)],
)
def test_the_peak_is_the_device_s(name: str, tera: int) -> None:
    assert benchmark.peak_flops(name) == tera * 1e12


def test_a_device_that_is_not_known_has_none() -> None:
    assert benchmark.peak_flops("cpu") is None
