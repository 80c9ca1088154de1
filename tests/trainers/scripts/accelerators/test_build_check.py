"""A program's torch is checked in its own interpreter: here one without packages, and a torch of files."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from trainers.errors import ResourceError
from trainers.scripts import accelerators
from trainers.scripts.accelerators import ACCELERATORS, check_build

NVIDIA, AMD, GAUDI = {"CUDA": "2 × NVIDIA A100"}, {"ROCm": "/dev/kfd"}, {"HPU": "8 × Gaudi"}
USABLE = "class ones:\n    def __init__(self, *size, device): pass\n    def add_(self, other): pass\n"
NO_HIP = "def ones(*size, device):\n    raise RuntimeError('No HIP GPUs are available\\nmore')\n"


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter without packages."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site"
    path.mkdir()
    return path


Check = Callable[..., None]


@pytest.fixture
def check(python: str, site: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    def check(name: str, devices: Mapping[str, str]) -> None:
        monkeypatch.setattr(accelerators, "devices_here", lambda: devices)
        environment = {**os.environ, "PYTHONPATH": str(site), "CUDA_VISIBLE_DEVICES": "4,2"}
        check_build(python, ACCELERATORS[name], "10.0.0.2", environment)

    return check


def install_torch(site: Path, content: str, *, version: str, hip: str | None = None, cuda: str | None = None) -> None:
    package = site / "torch"
    package.mkdir()
    (package / "version.py").write_text(f"__version__ = {version!r}\nhip = {hip!r}\ncuda = {cuda!r}\n")
    (package / "__init__.py").write_text(content)
    metadata = site / f"torch-{version.partition('+')[0]}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")


def install_gaudi_plugin(site: Path, content: str = "") -> None:
    package = site / "habana_frameworks" / "torch"
    package.mkdir(parents=True)
    (site / "habana_frameworks" / "__init__.py").touch()
    (package / "__init__.py").write_text(content)


@pytest.mark.parametrize(("name", "built_for"), [("cuda", {"cuda": "12.8"}), ("rocm", {"hip": "6.4"})])
def test_one_that_uses_a_device_passes(name: str, built_for: dict[str, str], check: Check, site: Path) -> None:
    install_torch(site, USABLE, version="2.8.0", **built_for)
    check(name, {})


def test_the_classic_of_rocm_s_build_on_nvidia_s_gpus_has_the_line_that_fixes_it(check: Check, site: Path) -> None:
    install_torch(site, NO_HIP, version="2.8.0+rocm6.4", hip="6.4")
    with pytest.raises(ResourceError) as error:
        check("cuda", NVIDIA)
    assert str(error.value) == (
        "10.0.0.2 has CUDA (2 × NVIDIA A100), and torch 2.8.0+rocm6.4 (ROCm 6.4), a build for ROCm "
        '("RuntimeError: No HIP GPUs are available"): install the build for CUDA: '
        f"{sys.executable} -m pip install --force-reinstall torch==2.8.0"
    )


def test_a_build_for_cpus_on_amd_s_gpus_has_the_line_that_fixes_it(check: Check, site: Path) -> None:
    install_torch(site, "", version="2.8.0+cpu")
    with pytest.raises(ResourceError, match=r"torch==2.8.0 --index-url https://download.pytorch.org/whl/rocm6.4$"):
        check("rocm", AMD)


def test_the_environment_is_the_program_s(check: Check, site: Path) -> None:
    content = "import os\ndef ones(*size, device): raise RuntimeError(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    install_torch(site, content, version="2.8.0", cuda="12.8")
    with pytest.raises(ResourceError, match=r'sees none of them \("RuntimeError: 4,2"\): update NVIDIA'):
        check("cuda", NVIDIA)


def test_a_torch_that_cannot_be_imported_is_to_be_installed_again(check: Check, site: Path) -> None:
    install_torch(site, "raise ImportError('libcudart.so.12: cannot open')", version="2.8.0", cuda="12.8")
    with pytest.raises(ResourceError, match=r"libcudart.so.12: cannot open\"\): install the build for CUDA: "):
        check("cuda", NVIDIA)


class TestGaudi:
    @pytest.mark.parametrize("cuda", [None, "12.8"])
    def test_the_vendor_s_plugin_is_enough(self, cuda: str | None, check: Check, site: Path) -> None:
        install_torch(site, "", version="2.9.0", cuda=cuda)
        install_gaudi_plugin(site)
        check("hpu", {})

    def test_a_torch_without_the_plugin_needs_the_vendor_s_image(self, check: Check, site: Path) -> None:
        install_torch(site, "", version="2.9.0+cpu")
        with pytest.raises(ResourceError, match=r"\(CPU\) .*No module named 'habana_frameworks'.* vendor's image"):
            check("hpu", GAUDI)

    def test_a_container_that_shows_it_no_device_is_told_its_options(self, check: Check, site: Path) -> None:
        install_torch(site, "", version="2.9.0")
        install_gaudi_plugin(
            site, "import torch\nclass hpu:\n    is_available = staticmethod(lambda: False)\ntorch.hpu = hpu\n"
        )
        with pytest.raises(ResourceError, match=r"--runtime=habana -e HABANA_VISIBLE_DEVICES=all"):
            check("hpu", {})


@pytest.mark.parametrize("name", ["cuda", "hpu"])
def test_a_program_may_have_no_torch(name: str, check: Check, capfd: pytest.CaptureFixture[str]) -> None:
    check(name, {})
    assert "on 10.0.0.2 has no torch, so whether it fits" in capfd.readouterr().out


def test_without_an_accelerator_nothing_is_run() -> None:
    check_build("/no/such/python", ACCELERATORS["cpu"], "10.0.0.2", {})


def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(ResourceError, match=r"script.python: /no/such/python cannot be run on 10.0.0.2 \(No such file"):
        check_build("/no/such/python", ACCELERATORS["cuda"], "10.0.0.2", {})


def test_one_that_crashes_is_told_by_its_last_words(check: Check, site: Path) -> None:
    content = "import os\nos.write(2, b'first\\ndriver: bad\\n')\nos._exit(3)\n"
    install_torch(site, content, version="2.8.0", cuda="12.8")
    with pytest.raises(ResourceError, match=r"ended with 3 when it was to load torch and use a device: driver: bad;"):
        check("cuda", NVIDIA)


def test_one_that_hangs_is_not_waited_for_without_end(
    check: Check, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerators, "PROBE_TIMEOUT_S", 0.3)
    install_torch(site, "import time\ntime.sleep(600)\n", version="2.8.0", cuda="12.8")
    with pytest.raises(ResourceError, match=r"did not load torch and use a device within"):
        check("cuda", NVIDIA)
