import pickle
from pathlib import Path

import pytest
import torch

from trainers.config.storage_location import StorageOptions
from trainers.distributed.hardware import devices_here, judge
from trainers.errors import DataError, ResourceError
from trainers.inspection import node_checks
from trainers.inspection.machine_checks import build_here
from trainers.inspection.node_checks import WorkerCheck, judge_files


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "10.0.0.2")
    monkeypatch.setattr(node_checks, "FILE_VISIBILITY_TIMEOUT_S", 0.0)


def test_a_node_with_the_data_passes(tmp_path: Path) -> None:
    (tmp_path / "summary.json").touch()
    check = WorkerCheck.of([str(tmp_path), "s3://bucket/prepared/train"], device="cpu")
    assert check.folders == (str(tmp_path),), "a bucket is the same from every node"
    pickle.loads(pickle.dumps(check))()


def test_a_node_without_the_data_is_named_in_the_words_of_preflight(tmp_path: Path) -> None:
    check = WorkerCheck.of([str(tmp_path)], device="cpu")
    with pytest.raises(DataError) as error:
        check()
    assert str(error.value) == f"on 10.0.0.2: {judge_files([str(tmp_path / 'summary.json')], StorageOptions()).text}"


def test_data_that_is_there_and_cannot_be_read_is_found(tmp_path: Path) -> None:
    # Its first bytes are not mapped, so that reading fails, for root too.
    (tmp_path / "summary.json").symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match=r"1 of 1 files cannot be read \(.*/summary\.json: "):
        WorkerCheck.of([str(tmp_path)], device="cpu")()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU that torch sees")
def test_a_torch_that_does_not_fit_is_named_in_the_words_of_preflight() -> None:
    with pytest.raises(ResourceError) as error:
        WorkerCheck.of([], device="auto")()
    found = judge(build_here(use_gpu=True), devices_here(), wanted="auto", machine="10.0.0.2")
    assert str(error.value) == found.text
