"""Which accelerators a machine has, and what is said of a torch that does not fit them."""

from pathlib import Path

import pytest

from trainers.config.parts.scaling_part import AcceleratorName
from trainers.distributed.hardware import Build, devices_here, judge, kind_of

CPU_BUILD = Build("CPU", "torch 2.13.0+cpu (CPU)", False, packages=("torch==2.13.0", "torchaudio==2.13.0"))
CUDA_BUILD = Build("CUDA", "torch 2.13.0+cu128 (CUDA 12.8)", True)
BLIND_BUILD = Build("CUDA", "torch 2.13.0+cu128 (CUDA 12.8)", False)
ROCM_BUILD = Build("ROCm", "torch 2.13.0+rocm7.2 (ROCm 7.2)", True)
# As it says on a node of NVIDIA's, and on one of AMD's whose devices the user may not open.
NO_HIP = Build(
    "ROCm",
    "torch 2.8.0+rocm6.4 (ROCm 6.4)",
    False,
    "RuntimeError: No HIP GPUs are available",
    "/opt/asr/bin/python",
    ("torch==2.8.0",),
)
BROKEN = Build("CUDA", "torch 2.8.0 (CUDA 12.8)", False, "ImportError: libcudart.so.12: not found")
HPU_BUILD = Build("HPU", "torch 2.9.0+hpu (HPU)", True)
BLIND_HPU = Build("HPU", "torch 2.9.0+hpu (HPU)", False)
NVIDIA = {"CUDA": "8 × NVIDIA H100"}
AMD = {"ROCm": "/dev/kfd"}
GAUDI = {"HPU": "8 × Gaudi"}


@pytest.mark.parametrize(
    ("build", "devices", "wanted", "level", "words"),
    [
        (CPU_BUILD, {}, "cpu", "ok", "node-1 has no GPU, and torch 2.13.0+cpu (CPU)"),
        (CUDA_BUILD, {}, "cpu", "ok", "no GPU"),
        (CUDA_BUILD, NVIDIA, "auto", "ok", "8 × NVIDIA H100"),
        (CUDA_BUILD, NVIDIA, "cuda", "ok", "8 × NVIDIA H100"),
        (ROCM_BUILD, AMD, "auto", "ok", "/dev/kfd"),
        (ROCM_BUILD, AMD, "rocm", "ok", "/dev/kfd"),
        (HPU_BUILD, GAUDI, "hpu", "ok", "8 × Gaudi"),
        (HPU_BUILD, {}, "hpu", "ok", "torch 2.9.0+hpu (HPU)"),
        (
            CPU_BUILD,
            NVIDIA,
            "auto",
            "error",
            "a build for CPU: install the build for CUDA: python -m pip install --force-reinstall torch==2.13.0 "
            "torchaudio==2.13.0",
        ),
        (CUDA_BUILD, AMD, "auto", "error", "a build for CUDA: install the build for ROCm: python -m pip install"),
        (CPU_BUILD, AMD, "rocm", "error", "torch==2.13.0 torchaudio==2.13.0 --index-url https://download.pytorch.org/"),
        (
            NO_HIP,
            NVIDIA,
            "cuda",
            "error",
            'a build for ROCm ("RuntimeError: No HIP GPUs are available"): install the build for CUDA: '
            "/opt/asr/bin/python -m pip install --force-reinstall torch==2.8.0",
        ),
        (NO_HIP, AMD, "auto", "error", '("RuntimeError: No HIP GPUs are available"): let the user open /dev/kfd: sudo'),
        (BROKEN, NVIDIA, "auto", "error", 'not found"): install the build for CUDA: python -m pip install --force-re'),
        (BLIND_BUILD, NVIDIA, "auto", "error", "sees none of them: update NVIDIA's driver"),
        (
            CUDA_BUILD,
            {},
            "auto",
            "error",
            "scaling.use_gpu is true; use a machine with GPUs, or set scaling.use_gpu: false and",
        ),
        (CPU_BUILD, GAUDI, "auto", "error", "use_gpu is true (Gaudi: scaling.accelerator: hpu, for trainer: script)"),
        (ROCM_BUILD, AMD, "cuda", "error", "scaling.accelerator is cuda; set it to rocm, or choose nodes"),
        (CUDA_BUILD, {}, "rocm", "error", "scaling.accelerator is rocm; set it to cpu, or choose nodes"),
        (CPU_BUILD, GAUDI, "hpu", "error", "torch for Gaudi comes only in its vendor's image"),
        (BLIND_HPU, GAUDI, "hpu", "error", "which sees none of them: start the container with --runtime=habana"),
        (CUDA_BUILD, NVIDIA, "cpu", "warning", "they stay idle; set scaling.use_gpu: true"),
        (CPU_BUILD, GAUDI, "cpu", "ok", "HPU (8 × Gaudi)"),
    ],
)
def test_build_machine_and_config_are_compared(
    build: Build, devices: dict[str, str], wanted: AcceleratorName, level: str, words: str
) -> None:
    note = judge(build, devices, wanted=wanted, machine="node-1")
    assert (note.level, words in note.text) == (level, True), note


@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        ({"hip": "6.4", "cuda": None, "has_habana": False}, ("ROCm", "torch 2.8.0 (ROCm 6.4)")),
        ({"hip": None, "cuda": "12.8", "has_habana": False}, ("CUDA", "torch 2.8.0 (CUDA 12.8)")),
        ({"hip": None, "cuda": None, "has_habana": True}, ("HPU", "torch 2.8.0 (HPU)")),
        ({"hip": None, "cuda": None, "has_habana": False}, ("CPU", "torch 2.8.0 (CPU)")),
    ],
)
def test_a_build_is_what_torch_says_it_was_built_for(constants: dict[str, str], expected: tuple[str, str]) -> None:
    assert kind_of("2.8.0", **constants) == expected  # type: ignore[arg-type]


class TestDevices:
    @pytest.fixture
    def bare(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Root of a machine without accelerators, and without NVIDIA's tool."""
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        (tmp_path / "dev").mkdir()
        return tmp_path

    def test_a_bare_machine_has_none(self, bare: Path) -> None:
        assert devices_here(bare) == {}

    def test_nvidia_s_tool_is_believed(self, bare: Path) -> None:
        tool = bare / "bin" / "nvidia-smi"
        tool.parent.mkdir()
        tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)'\necho 'GPU 1: x (UUID: GPU-2)'\n")
        tool.chmod(0o755)
        assert devices_here(bare) == {"CUDA": "2 × NVIDIA H100 80GB HBM3"}

    def test_a_tool_that_finds_no_driver_is_not_a_gpu(self, bare: Path) -> None:
        tool = bare / "bin" / "nvidia-smi"
        tool.parent.mkdir()
        tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
        tool.chmod(0o755)
        assert devices_here(bare) == {}

    def test_devices_without_tools(self, bare: Path) -> None:
        for name in ("nvidia0", "nvidia1", "nvidiactl", "kfd"):
            (bare / "dev" / name).touch()
        assert devices_here(bare) == {"CUDA": "2 × /dev/nvidia", "ROCm": "/dev/kfd"}

    @pytest.mark.parametrize(("vendor", "kinds"), [("0x1da3", {"HPU"}), ("0x8086", set())])
    def test_an_accelerator_is_gaudi_by_its_maker(self, bare: Path, vendor: str, kinds: set[str]) -> None:
        device = bare / "sys" / "class" / "accel" / "accel0" / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        assert set(devices_here(bare)) == kinds


@pytest.mark.parametrize(("minor", "rocm"), [("8", "6.4"), ("13", "7.2")])
def test_the_line_names_an_index_that_has_the_version(minor: str, rocm: str) -> None:
    build = Build("CUDA", "torch", True, packages=(f"torch==2.{minor}.1",))
    assert judge(build, AMD, wanted="auto", machine="x").text.endswith(f"https://download.pytorch.org/whl/rocm{rocm}")
