"""The GPU suite, rehearsed on CPUs where Ray and whatever else a machine with a GPU may lack cannot be imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import wheels

ROOT = Path(__file__).parents[1]
SUITE = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--confcutdir=tests/gpu", "tests/gpu"]
ABSENT = ("ray", "datasets", "evaluate", "deepspeed", "av", "boto3", "pandas", "tensorboard", "hypothesis", "moto")
# Python runs it before all else, in processes that torchrun starts, too.
HIDE = f"""
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {ABSENT!r} else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""


def run_suite(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(HIDE)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "RAYSCRIBE"))}
    # Plugins of other packages import what is hidden.
    own = {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = {**inherited, **own, **variables}
    return subprocess.run(
        [sys.executable, *SUITE], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.long
@pytest.mark.integration
def test_the_suite_passes_on_cpus_without_ray(tmp_path: Path) -> None:
    done = run_suite(tmp_path, RAYSCRIBE_GPU_TESTS_ON="cpu")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "FSDP2 needs GPUs" in done.stdout
    assert "the package deepspeed is not installed" in done.stdout


@pytest.mark.integration
def test_without_a_gpu_all_of_it_is_skipped(tmp_path: Path) -> None:
    done = run_suite(tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stdout
    assert "no CUDA device" in done.stdout
    assert " passed" not in done.stdout.splitlines()[-1]


def test_every_wheel_has_a_pinned_version() -> None:
    pinned = wheels.pins(wheels.CONSTRAINTS.read_text(encoding="utf-8"))
    words = wheels.command(Path("wheels"), "3.12", pinned)
    assert [word.partition("==")[0] for word in words[-len(wheels.PACKAGES) :]] == list(wheels.PACKAGES)
    assert all("==" in word for word in words[-len(wheels.PACKAGES) :])
    assert not {"torch", "transformers", "ray"} & set(wheels.PACKAGES)
