from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from tests.trainers.inspection.checking import said, subject_of, the_one
from trainers.config import optional_packages
from trainers.inspection.machine_checks import build_here, check_strategy, check_torch_build, check_trackers


class TestThisMachine:
    def test_the_build_is_the_one_that_torch_says(self) -> None:
        build = build_here(use_gpu=True)
        assert torch.__version__ in build.name
        assert f"torch=={torch.__version__.partition('+')[0]}" in build.packages
        assert build.sees_devices == torch.cuda.is_available()
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
        assert "pip install 'rayscribe[deepspeed]'" in the_one(check_strategy, subject_of(tmp_path, self.ZERO), "error")
        skipped = the_one(check_strategy, subject_of(tmp_path, self.ZERO, elsewhere=True), "skipped")
        assert "the nodes may reach it" in skipped

    def test_its_tools_and_its_disk_are_looked_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("deepspeed")
        monkeypatch.setenv("PATH", str(tmp_path))
        nvme = {"strategy.offload_param": "nvme", "strategy.nvme_path": str(tmp_path / "nvme")}
        subject = subject_of(tmp_path, {**self.ZERO, **nvme})
        first, second = (text for _, text in said(check_strategy, subject))
        assert "needs g++ and ninja, not found here: install them" in first
        assert f"{tmp_path / 'nvme'} is not a folder of this machine" in second
        (tmp_path / "nvme").mkdir()
        for tool in ("g++", "ninja"):
            (tmp_path / tool).touch(mode=0o755)
        assert "deepspeed with ZeRO-3" in the_one(check_strategy, subject, "ok")


def test_trackers_are_looked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"training.report_to": ["tensorboard", "wandb"]}
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: name == "tensorboard" or None)
    text = the_one(check_trackers, subject_of(tmp_path, wanted), "error")
    assert "training.report_to wandb needs the package wandb" in text
    assert "pip install 'rayscribe[wandb]' (on a cluster" in text
    assert "the nodes may reach it" in the_one(check_trackers, subject_of(tmp_path, wanted, elsewhere=True), "skipped")
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: name)
    assert said(check_trackers, subject_of(tmp_path, wanted)) == [("ok", "training.report_to: tensorboard, wandb")]


def test_a_tracker_needs_access_to_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: name)
    text = the_one(check_trackers, subject_of(tmp_path, {"training.report_to": ["mlflow"]}), "error")
    assert text.startswith("training.report_to mlflow needs MLFLOW_TRACKING_URI")
