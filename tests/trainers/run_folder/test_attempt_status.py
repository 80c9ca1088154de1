import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.model import Progress
from tests.s3 import FaultProxy
from tests.trainers.run_folder.writers import begin, first_group, staged
from tests.trainers.synthetic import config
from trainers.errors import Interruption
from trainers.run_folder import attempt_status
from trainers.run_folder.attempt_status import (
    FinalStatus,
    Phase,
    StatusWriter,
    driver_log_key,
    read_status,
    restarts_of,
    status_key,
    worker_log_key,
    worker_logs,
)
from trainers.run_folder.checkpoints import RetentionPolicy, upload_staged
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.layout import RunFolder
from trainers.storage import Storage, open_storage

DEADLINE_S = 30.0


def test_restarts_are_those_of_the_attempt_with_the_last_reason(tmp_path: Path) -> None:
    folder = RunFolder(open_storage(str(tmp_path)))
    for attempt, reasons in ((1, [None, "rank 1 died", None]), (2, [None]), (3, [None, "a node was lost"])):
        driver = begin(folder, attempt)
        for number, reason in enumerate(reasons):
            state = GroupWriter.of(folder, driver.attempt, f"{attempt}{number}").open(2, reason)
    found = [restarts_of(state, attempt) for attempt in (1, 2, 3)]
    assert found == [
        {"restarts": 2, "restart_reason": ""},
        {},
        {"restarts": 1, "restart_reason": "a node was lost"},
    ]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_status, "WRITE_INTERVAL_S", 0.05)


def wait_for(folder: RunFolder, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first status that fulfills a condition."""
    end = time.monotonic() + DEADLINE_S
    while not condition(status := read_status(folder, 1) or {}):
        assert time.monotonic() < end, status
        time.sleep(0.005)
    return status


def test_a_status_is_what_the_service_reads(storage: Storage) -> None:
    folder = RunFolder(storage)
    assert read_status(folder, 1) is None
    with StatusWriter(folder, 1) as status:
        status.update(Phase.TRAINING, step=3, max_steps=200, loss=1.5)
        status.update(Phase.TRAINING, wer=12.5, eta_s=60.0, detail="scoring validation")
    progress = Progress.model_validate(read_status(folder, 1))
    assert progress.model_copy(update={"at_s": 0.0}) == Progress(
        phase="TRAINING", step=3, max_steps=200, loss=1.5, wer=12.5, eta_s=60.0, detail="scoring validation"
    )
    assert abs(progress.at_s - time.time()) < 3600


def test_changes_are_written_while_the_writer_lives(tmp_path: Path) -> None:
    folder = RunFolder(open_storage(str(tmp_path)))
    with StatusWriter(folder, 1) as status:
        status.update(Phase.PREPARING_DATA, detail="train 0 of 9 clips")
        wait_for(folder, lambda found: found.get("detail") == "train 0 of 9 clips")
        status.update(Phase.PREPARING_DATA, detail="train 5 of 9 clips")
        wait_for(folder, lambda found: found["detail"] == "train 5 of 9 clips")
        status.update(Phase.TRAINING, step=1)
        assert wait_for(folder, lambda found: found["phase"] == Phase.TRAINING)["detail"] == ""


def test_a_long_step_is_told_from_a_dead_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_status, "HEARTBEAT_S", 0.02)
    folder = RunFolder(open_storage(str(tmp_path)))
    with StatusWriter(folder, 1) as status:
        status.update(Phase.TRAINING, step=1)
        first = wait_for(folder, lambda found: found.get("step") == 1)["at_s"]
        wait_for(folder, lambda found: found["at_s"] > first)


def test_a_writer_that_rests_leaves_the_file_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_status, "HEARTBEAT_S", 0.02)
    folder = RunFolder(open_storage(str(tmp_path)))
    with StatusWriter(folder, 1) as driver:
        driver.update(Phase.WAITING_FOR_RESOURCES, detail="2 workers")
        wait_for(folder, lambda found: found.get("phase") == Phase.WAITING_FOR_RESOURCES)
        driver.pause()
        with StatusWriter(folder, 1) as worker:
            worker.update(Phase.TRAINING, step=7)
            wait_for(folder, lambda found: found.get("step") == 7)
    assert (read_status(folder, 1) or {})["phase"] == Phase.TRAINING


def test_the_end_keeps_how_far_training_had_come(storage: Storage) -> None:
    folder = RunFolder(storage)
    with StatusWriter(folder, 1) as worker:
        worker.update(Phase.TRAINING, step=37, max_steps=200, loss=1.0, eta_s=5.0)
    with StatusWriter(folder, 1, after_workers=True) as driver:
        driver.update(Phase.ENDED, detail="stopped at step 37/200", eta_s=None)
    ended = read_status(folder, 1) or {}
    assert (ended["phase"], ended["step"], ended["loss"], ended["eta_s"]) == (Phase.ENDED, 37, 1.0, None)


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("mine", "the same command"),
        ("mine-20260102-030405", "the same recipe with --set run.name=mine-20260102-030405"),
    ],
)
def test_an_interrupted_run_says_what_goes_on_with_it(name: str, again: str, tmp_path: Path) -> None:
    folder = RunFolder(open_storage(str(tmp_path / "run")))
    upload_staged(staged(tmp_path / "made", 10), first_group(folder), RetentionPolicy(None, "eval_wer"))
    with pytest.raises(Interruption) as ended, FinalStatus(config({"run.name": name}), folder, None):
        raise Interruption
    assert ended.value.left.endswith(f"/checkpoints; {again}, or `rayscribe resume`, continues from there")


def test_the_best_of_all_validations_stays_known_where_its_checkpoint_was_not_kept(tmp_path: Path) -> None:
    folder = RunFolder(open_storage(str(tmp_path / "run")))
    writer = first_group(folder)
    for step, wer in ((4, 95.0), (8, 96.5)):
        line = {"step": step, "attempt": 1, "eval_loss": 1.0, "eval_wer": wer, "eval_full_context_wer": wer + 1}
        folder.storage.append_line(writer.group.metrics_key, json.dumps(line))
    checkpoint = {"name": "checkpoint-8-a1-y", "step": 8, "attempt": 1, "created": "x", "files": {}}
    entry = {"kind": "checkpoint", "checkpoint": {**checkpoint, "metrics": {"eval_wer": 96.5}}, "removes": []}
    writer.append(lambda _: entry)
    with FinalStatus(config({}), folder, 1):
        pass
    status = read_status(folder, 1) or {}
    assert (status["best_wer"], status["best_full_context_wer"]) == (95.0, 96.0)


def test_an_attempt_without_a_number_writes_nothing(tmp_path: Path) -> None:
    with StatusWriter(RunFolder(open_storage(str(tmp_path))), None) as status:
        status.update(Phase.PREPARING_DATA)
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_a_storage_that_fails_or_hangs_disturbs_nobody(
    shaky_storage: Storage, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_status, "JOIN_TIMEOUT_S", 0.2)
    folder = RunFolder(shaky_storage)
    fault_proxy.fail_next(1000, status=403, error_code="AccessDenied")
    with StatusWriter(folder, 1) as status:
        status.update(Phase.TRAINING, step=1)
    fault_proxy.clear()
    fault_proxy.delay_put_s = 2.0
    with StatusWriter(folder, 1) as status:
        status.update(Phase.TRAINING, step=2)
    assert status._thread is not None
    assert status._thread.is_alive(), "the end waited for a storage that hangs"
    status._thread.join()


def test_what_is_no_status_is_none(tmp_path: Path) -> None:
    folder = RunFolder(open_storage(str(tmp_path)))
    for content in (b"", b"{", b"[1]"):
        folder.storage.write_bytes(status_key(1), content)
        assert read_status(folder, 1) is None
    folder.storage.write_bytes(status_key(1), json.dumps({"phase": "TRAINING"}).encode())
    assert read_status(folder, 1) == {"phase": "TRAINING"}


def test_logs_are_found_by_rank_and_group(storage: Storage) -> None:
    folder = RunFolder(storage)
    for rank, group in ((10, "b"), (0, "c"), (2, "a"), (0, "a")):
        storage.write_bytes(worker_log_key(3, rank, group), b"x\n")
    storage.write_bytes(driver_log_key(3), b"x\n")
    storage.write_bytes(driver_log_key(3, 1), b"x\n")
    storage.write_bytes("attempts/3/logs/other.txt", b"x\n")
    assert worker_logs(folder, 3) == [
        (rank, group, worker_log_key(3, rank, group)) for rank, group in ((0, "a"), (0, "c"), (2, "a"), (10, "b"))
    ]
    assert worker_logs(folder, 4) == []
