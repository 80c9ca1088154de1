from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from tests.trainers.inspection.checking import said, subject_of, the_one
from trainers.config import optional_packages
from trainers.inspection.hardware_checks import (
    Build,
    build_here,
    check_strategy,
    check_torch_build,
    check_trackers,
    devices_here,
    judge,
)

CPU_BUILD = Build("CPU", "torch 2.13.0+cpu (CPU)", False)
CUDA_BUILD = Build("CUDA", "torch 2.13.0+cu128 (CUDA 12.8)", True)
BLIND_BUILD = Build("CUDA", "torch 2.13.0+cu128 (CUDA 12.8)", False)
ROCM_BUILD = Build("ROCm", "torch 2.13.0+rocm6.4 (ROCm 6.4)", True)
NVIDIA = {"CUDA": "8 × NVIDIA H100"}
AMD = {"ROCm": "/dev/kfd"}
GAUDI = {"HPU": "8 × Gaudi"}


@pytest.mark.parametrize(
    ("build", "devices", "use_gpu", "level", "words"),
    [
        (CPU_BUILD, {}, False, "ok", "node-1 has no GPU, and torch 2.13.0+cpu (CPU)"),
        (CUDA_BUILD, {}, False, "ok", "no GPU"),
        (CUDA_BUILD, NVIDIA, True, "ok", "8 × NVIDIA H100"),
        (ROCM_BUILD, AMD, True, "ok", "/dev/kfd"),
        (CPU_BUILD, NVIDIA, True, "error", "a build for CPU: install the build for CUDA"),
        (CUDA_BUILD, AMD, True, "error", "a build for CUDA: install the build for ROCm"),
        (BLIND_BUILD, NVIDIA, True, "error", "sees none of them: update the driver"),
        (
            CUDA_BUILD,
            {},
            True,
            "error",
            "scaling.use_gpu is true; use a machine with GPUs, or set scaling.use_gpu: false and",
        ),
        (CPU_BUILD, GAUDI, True, "error", "HPU (8 × Gaudi)"),
        (CUDA_BUILD, NVIDIA, False, "warning", "they stay idle; set scaling.use_gpu: true"),
        (CPU_BUILD, GAUDI, False, "ok", "HPU (8 × Gaudi)"),
    ],
)
def test_build_machine_and_config_are_compared(
    build: Build, devices: dict[str, str], use_gpu: bool, level: str, words: str
) -> None:
    note = judge(build, devices, use_gpu=use_gpu, machine="node-1")
    assert (note.level, words in note.text) == (level, True), note


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


class TestThisMachine:
    def test_the_build_is_the_one_that_torch_says(self) -> None:
        build = build_here(use_gpu=True)
        assert torch.__version__ in build.name
        assert build.sees_gpus == torch.cuda.is_available()
        assert build_here(use_gpu=False).name == build.name

    @pytest.mark.skipif(torch.cuda.is_available() or Path("/dev/nvidia0").exists(), reason="this machine has GPUs")
    def test_gpus_that_are_not_there_are_an_error(self, tmp_path: Path) -> None:
        text = the_one(check_torch_build, subject_of(tmp_path, {"scaling.use_gpu": True}), "error")
        assert "no GPU" in text
        assert "scaling.use_gpu is true" in text

    def test_another_machine_is_not_judged_by_this_one(self, tmp_path: Path) -> None:
        subject = subject_of(tmp_path, {"scaling.use_gpu": True}, elsewhere=True)
        assert said(check_torch_build, subject) == [("skipped", "the job runs on other machines")]


class TestStrategy:
    ZERO: ClassVar[dict[str, Any]] = {"strategy.name": "deepspeed", "strategy.zero_stage": 3}

    def test_ddp_needs_nothing(self, tmp_path: Path) -> None:
        assert said(check_strategy, subject_of(tmp_path)) == [("ok", "strategy.name: ddp")]

    def test_deepspeed_is_named_where_it_is_not_installed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(optional_packages, "find_spec", lambda name: None)
        assert "pip install deepspeed" in the_one(check_strategy, subject_of(tmp_path, self.ZERO), "error")
        skipped = the_one(check_strategy, subject_of(tmp_path, self.ZERO, elsewhere=True), "skipped")
        assert "the nodes may reach it" in skipped

    def test_its_tools_and_its_disk_are_looked_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("deepspeed")
        monkeypatch.setenv("PATH", str(tmp_path))
        nvme = {"strategy.offload_param": "nvme", "strategy.nvme_path": str(tmp_path / "nvme")}
        subject = subject_of(tmp_path, {**self.ZERO, **nvme})
        first, second = (text for _, text in said(check_strategy, subject))
        assert "g++ and ninja is not there: install it" in first
        assert f"{tmp_path / 'nvme'} is no folder here" in second
        (tmp_path / "nvme").mkdir()
        for tool in ("g++", "ninja"):
            (tmp_path / tool).touch(mode=0o755)
        assert "deepspeed with ZeRO-3" in the_one(check_strategy, subject, "ok")


def test_trackers_are_looked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"training.report_to": ["tensorboard", "wandb"]}
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: name == "tensorboard" or None)
    text = the_one(check_trackers, subject_of(tmp_path, wanted), "error")
    assert "training.report_to wandb needs the package wandb" in text
    assert "the nodes may reach it" in the_one(check_trackers, subject_of(tmp_path, wanted, elsewhere=True), "skipped")
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: name)
    assert said(check_trackers, subject_of(tmp_path, wanted)) == [("ok", "training.report_to: tensorboard, wandb")]
