"""Metrics next to training: never in its way, and the first to find that another attempt has taken over."""

from pathlib import Path

import pytest

from tests.metrics_lines import metrics_of
from tests.s3 import FaultProxy
from tests.trainers.run_folder.writers import begin, first_group, group_of
from trainers.config.storage_location import StorageOptions
from trainers.errors import FencedError, StorageError
from trainers.run_folder.layout import METRICS, RunFolder
from trainers.storage import RetryPolicy, Storage, open_storage
from trainers.training.callbacks import MetricsLog

IMPATIENT = RetryPolicy(attempts=1)


def test_lines_go_into_the_group_s_own_file(storage: Storage) -> None:
    folder = RunFolder(storage)
    writer = first_group(folder)
    log = MetricsLog(writer, print)
    for step in (1, 2):
        log.write({"step": step})
    log.flush()
    assert metrics_of(folder) == [{"step": 1}, {"step": 2}]
    assert not storage.exists(METRICS)


def test_a_norm_that_is_infinite_for_a_step_is_null(storage: Storage) -> None:
    folder = RunFolder(storage)
    writer = first_group(folder)
    log = MetricsLog(writer, print)
    log.write({"step": 1, "loss": 2.5, "grad_norm": float("inf")})
    log.flush()
    text = storage.read_bytes(writer.group.metrics_key).decode()
    assert text == '{"step": 1, "loss": 2.5, "grad_norm": null}\n', "JSON has no infinity"


def test_a_stale_group_learns_of_it_and_its_line_does_not_count(storage: Storage) -> None:
    folder = RunFolder(storage)
    log = MetricsLog(first_group(folder), print)
    log.write({"step": 1})
    log.flush()
    begin(folder, number=2)
    log.write({"step": 2})
    with pytest.raises(FencedError, match="attempt 2 has taken this run over"):
        log.flush()
    with pytest.raises(FencedError):
        log.write({"step": 3})
    assert metrics_of(folder) == [{"step": 1}]


def test_a_storage_that_is_away_is_told_once_and_gets_the_lines_when_it_is_back(
    tmp_path: Path, s3_bucket: str, fault_proxy: FaultProxy
) -> None:
    folder = RunFolder(open_storage(f"{s3_bucket}/run", StorageOptions(fault_proxy.url), retry=IMPATIENT))
    said: list[str] = []
    log = MetricsLog(first_group(folder), said.append)
    fault_proxy.fail_next(2, matches=lambda method, path: "metrics" in path)
    log.write({"step": 1})
    log.flush()
    assert metrics_of(folder) == []
    assert len(said) == 1
    assert "training continues" in said[0]
    log.write({"step": 2})
    log.flush()
    assert metrics_of(folder) == [{"step": 1}, {"step": 2}]


@pytest.mark.integration
def test_lines_that_no_storage_took_go_on_with_the_checkpoint(
    tmp_path: Path, s3_bucket: str, fault_proxy: FaultProxy
) -> None:
    folder = RunFolder(open_storage(f"{s3_bucket}/run", StorageOptions(fault_proxy.url), retry=IMPATIENT))
    killed = MetricsLog(first_group(folder), print)
    killed.write({"step": 1})
    killed.keep(tmp_path)
    assert not [*tmp_path.iterdir()], "the storage has them all"
    fault_proxy.fail_next(100, matches=lambda method, path: "metrics" in path)
    killed.write({"step": 2})
    killed.write({"step": 2, "eval_wer": 50.0})
    killed.keep(tmp_path)
    fault_proxy.clear()
    accepted: list[str] = []
    log = MetricsLog(group_of(begin(folder), "y"), print, accepted.append)
    log.take_over(tmp_path)
    log.write({"step": 3})
    log.flush()
    assert metrics_of(folder) == [{"step": 1}, {"step": 2}, {"step": 2, "eval_wer": 50.0}, {"step": 3}]
    assert len(accepted) == 3, "trackers are sent them, too"


def test_a_run_does_not_end_before_all_its_lines_are_written(s3_bucket: str, fault_proxy: FaultProxy) -> None:
    folder = RunFolder(open_storage(f"{s3_bucket}/run", StorageOptions(fault_proxy.url), retry=IMPATIENT))
    log = MetricsLog(first_group(folder), print)
    fault_proxy.fail_next(3, matches=lambda method, path: "metrics" in path)
    log.write({"step": 1})
    log.flush()
    with pytest.raises(StorageError, match="metrics"):
        log.complete()
    fault_proxy.clear()
    log.complete()
    assert metrics_of(folder) == [{"step": 1}]
