from pathlib import Path

import pytest

from tests.hub import READING, Hub
from tests.s3 import FaultProxy
from tests.trainers.inspection.checking import levels, subject_of, the_one
from trainers.config.storage_location import StorageOptions
from trainers.inspection.machine_checks import check_hub, check_storage
from trainers.storage import open_storage


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, {"run.storage_path": str(tmp_path / "deep" / "runs")})
    assert levels(check_storage, subject) == {"ok"}
    assert not (tmp_path / "deep").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    subject = subject_of(tmp_path, {"run.storage_path": str(tmp_path / "file" / "runs")})
    text = the_one(check_storage, subject, "error")
    assert text.startswith("run.storage_path: cannot create ")
    assert "there is a file where a folder is needed: choose another storage path" in text


def test_a_cache_of_its_own_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    subject = subject_of(tmp_path, {"data.cache_dir": str(tmp_path / "file")})
    assert the_one(check_storage, subject, "error").startswith("data.cache_dir: ")


def test_a_folder_of_the_nodes_is_not_made_here(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, {"run.storage_path": str(tmp_path / "runs")}, elsewhere=True)
    assert "is a folder that this machine does not have" in the_one(check_storage, subject, "skipped")
    assert not (tmp_path / "runs").exists()


@pytest.mark.integration
def test_a_bucket_that_can_be_written_is_left_as_it_was(tmp_path: Path, s3_bucket: str, s3_endpoint: str) -> None:
    changes = {"run.storage_path": f"{s3_bucket}/runs", "run.s3_endpoint_url": s3_endpoint}
    assert levels(check_storage, subject_of(tmp_path, changes)) == {"ok"}
    assert open_storage(s3_bucket, StorageOptions(s3_endpoint)).list_files() == []


def test_a_bucket_that_is_not_there(tmp_path: Path, s3_bucket: str, s3_endpoint: str) -> None:
    changes = {"run.storage_path": f"{s3_bucket}-other/runs", "run.s3_endpoint_url": s3_endpoint}
    text = the_one(check_storage, subject_of(tmp_path, changes), "error")
    assert "does not exist" in text
    assert "create it or correct the storage path" in text


def test_a_bucket_that_refuses_this_machine_may_take_the_nodes(
    tmp_path: Path, s3_bucket: str, fault_proxy: FaultProxy
) -> None:
    fault_proxy.fail_next(100, status=403, error_code="AccessDenied")
    changes = {"run.storage_path": f"{s3_bucket}/runs", "run.s3_endpoint_url": fault_proxy.url}
    assert "permission denied" in the_one(check_storage, subject_of(tmp_path, changes, elsewhere=True), "skipped")
    assert "permission denied" in the_one(check_storage, subject_of(tmp_path, changes), "error")


def test_a_model_that_can_be_pushed_makes_nothing_yet(tmp_path: Path, taking_hub: Hub) -> None:
    assert levels(check_hub, subject_of(tmp_path)) == {"ok"} and taking_hub.requests == []
    assert the_one(check_hub, subject_of(tmp_path, {"hub.push": True}), "ok").endswith(f"{taking_hub.url}/ana/mine")
    assert taking_hub.repositories == {}


def test_a_token_that_only_reads_may_be_another_on_the_nodes(
    tmp_path: Path, taking_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", READING)
    here, elsewhere = (subject_of(tmp_path / name, {"hub.push": True}, elsewhere=bool(name)) for name in ("", "other"))
    assert "the token of ana only reads" in the_one(check_hub, here, "error")
    assert "the nodes may reach it" in the_one(check_hub, elsewhere, "skipped")
