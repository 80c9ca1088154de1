"""What a machine has, as its drivers and a container's limits tell."""

import os
from pathlib import Path

import pytest

from jobs.recipes.found_machine import Gpu, Machine, look_at_machine

GIB = 2**30
SMI = """#!/bin/sh
case "$1" in
--list-gpus) printf 'GPU 0: NVIDIA H100 (UUID: x)\\nGPU 1: Tesla T4 (UUID: y)\\nGPU 2: NVIDIA GB10 (UUID: z)\\n' ;;
*) printf 'NVIDIA H100, 81559, 9.0\\nTesla T4, 15360, 7.5\\nNVIDIA GB10, [N/A], 12.1\\n' ;;
esac
"""


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root folder, and a PATH with a nvidia-smi that knows three GPUs."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(SMI)
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def test_nvidia_s_gpus_have_memory_and_a_capability(nvidia: Path) -> None:
    assert look_at_machine(nvidia).gpus == (
        Gpu("NVIDIA H100", 81559 * 2**20, has_bfloat16=True),
        Gpu("Tesla T4", 15 * GIB, has_bfloat16=False),
        Gpu("NVIDIA GB10", 8 * GIB, has_bfloat16=True),
    )


@pytest.mark.parametrize(("visible", "count"), [("0", 1), ("0,2", 2), ("", 0), ("-1", 0)])
def test_gpus_that_are_hidden_are_not_counted(
    nvidia: Path, monkeypatch: pytest.MonkeyPatch, visible: str, count: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert len(look_at_machine(nvidia).gpus) == count


def test_amd_s_gpus_are_those_with_memory_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    for number, size in enumerate((192 * GIB, GIB // 2)):
        file = tmp_path / f"sys/class/drm/card{number}/device/mem_info_vram_total"
        file.parent.mkdir(parents=True)
        file.write_text(f"{size}\n")
    assert look_at_machine(tmp_path).gpus == (Gpu("AMD GPU", 192 * GIB, has_bfloat16=True),)


def test_a_container_has_less_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    everything = look_at_machine(tmp_path)
    assert everything.cpus >= 1
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("50000 100000\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1048576\n")
    assert look_at_machine(tmp_path) == Machine(1, 1048576)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert look_at_machine(tmp_path) == everything


def test_it_is_described_in_a_line() -> None:
    assert str(Machine(1, 4 * GIB)) == "1 CPU, 4 GiB of memory, no GPU"
    assert (
        str(Machine(16, 128 * GIB, (Gpu("L4", 24 * GIB, True),) * 2)) == "16 CPUs, 128 GiB of memory, 2 × L4 (24 GiB)"
    )
