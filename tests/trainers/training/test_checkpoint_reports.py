"""What is reported to Ray of a run's checkpoints: each once, by every rank, with the score that it has."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.run_folder.writers import begin, first_group, group_of, staged
from trainers.distributed.session import LocalSession
from trainers.errors import StorageError
from trainers.run_folder.checkpoints import RetentionPolicy, upload_staged
from trainers.run_folder.layout import RunFolder
from trainers.storage import Storage, open_storage
from trainers.training.callbacks import CheckpointReports

KEEP_TWO = RetentionPolicy(2, "eval_wer")


@dataclass(frozen=True)
class Engine(LocalSession):
    """A single rank whose engine keeps pointers."""

    pointers: set[str] = field(default_factory=set)
    reports: list[tuple[str | None, dict[str, Any]]] = field(default_factory=list)

    def report(self, metrics: dict[str, Any], pointer: str | None = None) -> None:
        self.reports.append((pointer, metrics))

    def reported_pointers(self) -> set[str] | None:
        return self.pointers


def names(engine: Engine) -> list[str | None]:
    return [pointer for pointer, _ in engine.reports]


def test_an_attempt_reports_what_the_journal_still_holds_in_the_order_of_steps(
    tmp_path: Path, storage: Storage
) -> None:
    folder = RunFolder(storage)
    first = first_group(folder)
    for step, wer in ((1, 9.0), (2, 5.0), (3, 7.0), (4, 8.0)):
        upload_staged(staged(tmp_path, step, wer), first, KEEP_TWO)
    engine = Engine(0, 1, 0)
    CheckpointReports(engine, group_of(begin(folder, number=2), "y"), "eval_wer").report_kept()
    assert engine.reports == [
        ("checkpoint-2-a1-x", {"eval_wer": 5.0, "step": 2}),
        ("checkpoint-3-a1-x", {"eval_wer": 7.0, "step": 3}),
        ("checkpoint-4-a1-x", {"eval_wer": 8.0, "step": 4}),
    ]
    for name in names(engine):
        key = f"attempts/2/ray/{folder.ray_run_name(2)}/{name}/pointer.json"
        step = int(str(name).split("-")[1])
        assert folder.read_json(key) == {"uri": storage.url(f"checkpoints/{name}"), "step": step}


def test_a_worker_group_reports_nothing_that_an_earlier_one_of_the_attempt_has_reported(
    tmp_path: Path, storage: Storage
) -> None:
    folder = RunFolder(storage)
    driver = begin(folder)
    first = group_of(driver, "x")
    for step in (1, 2):
        upload_staged(staged(tmp_path, step), first, KEEP_TWO)
    engine = Engine(0, 1, 0, pointers={"checkpoint-1-a1-x"})
    CheckpointReports(engine, group_of(driver, "y"), "eval_wer").report_kept()
    assert names(engine) == ["checkpoint-2-a1-x"]


def test_an_uploaded_checkpoint_is_reported_once_when_all_ranks_are_at_the_same_step(
    tmp_path: Path, storage: Storage
) -> None:
    writer, engine = first_group(RunFolder(storage)), Engine(0, 1, 0)
    reports = CheckpointReports(engine, writer, "eval_wer")
    reports.add(upload_staged(staged(tmp_path, 1), writer, KEEP_TWO))
    assert engine.reports == []
    reports.report_new()
    reports.report_new()
    assert names(engine) == ["checkpoint-1-a1-x"]


def test_a_checkpoint_without_a_score_is_not_reported_since_ray_would_rank_it(tmp_path: Path, storage: Storage) -> None:
    folder = RunFolder(storage)
    writer, engine = first_group(folder), Engine(0, 1, 0)
    reports = CheckpointReports(engine, writer, "eval_cer")
    reports.add(upload_staged(staged(tmp_path, 1), writer, KEEP_TWO))
    reports.report_new()
    CheckpointReports(engine, group_of(begin(folder, number=2), "y"), "eval_cer").report_kept()
    assert engine.reports == []


def test_a_pointer_that_cannot_be_written_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: RunFolder, key: str, content: Any) -> None:
        raise StorageError("the disk is full")

    writer, engine = first_group(RunFolder(open_storage(str(tmp_path / "run")))), Engine(0, 1, 0)
    reports = CheckpointReports(engine, writer, "eval_wer")
    checkpoint = upload_staged(staged(tmp_path, 1), writer, KEEP_TWO)
    monkeypatch.setattr(RunFolder, "write_json", refuse)
    reports.add(checkpoint)
    reports.report_new()
    assert engine.reports == []


def test_without_ray_there_are_no_pointers(tmp_path: Path, storage: Storage) -> None:
    folder = RunFolder(storage)
    writer = first_group(folder)
    reports = CheckpointReports(LocalSession(0, 1, 0), writer, "eval_wer")
    reports.add(upload_staged(staged(tmp_path, 1), writer, KEEP_TWO))
    reports.report_kept()
    reports.report_new()
    assert storage.list_folders("attempts/1") == []
