"""What people see at the root of a run folder, whoever published it last."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.s3 import fails
from tests.trainers.run_folder.writers import begin, group_of
from trainers.run_folder import publish as module
from trainers.run_folder.checkpoints import sweep
from trainers.run_folder.fencing import Driver, GroupWriter
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import METRICS, RESULT, RunFolder
from trainers.run_folder.publish import REQUEST, publish
from trainers.storage import Storage, open_storage
from trainers.storage.copy import copy_file

FILES = ("evaluation/test.json", "model/config.json", METRICS, RESULT)


@pytest.fixture
def folder(storage: Storage) -> RunFolder:
    """An empty run folder of each kind."""
    return RunFolder(storage)


def prepared(folder: RunFolder, number: int) -> Driver:
    """A driver that has prepared its attempt."""
    driver = begin(folder, number)
    for name in REQUEST:
        driver.own.storage.write_bytes(name, f"attempt {number}".encode())
    driver.append(lambda state: {"kind": "prepared", "attempt": number, "processor": None})
    return driver


def finish(writer: GroupWriter) -> None:
    """Results of a worker group that the journal names."""
    outputs = writer.group.outputs
    for name in FILES:
        writer.folder.storage.write_bytes(f"{outputs}/{name}", outputs.encode())
    entry = {"kind": "finished", "attempt": writer.attempt, "outputs": outputs, "files": FILES, "result": {}}
    writer.append(lambda state: entry)


def seen(folder: RunFolder) -> set[bytes]:
    """All contents that the root shows."""
    return {folder.storage.read_bytes(name) for name in (*REQUEST, *FILES)}


def pause_at(number: int, meanwhile: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has `meanwhile` happen right before copy number `number`, which its source was chosen for already."""
    copies = 0

    def copy(storage: Storage, source: str, target: str) -> None:
        nonlocal copies
        copies += 1
        if copies == number:
            meanwhile()
        copy_file(storage, source, target)

    monkeypatch.setattr(module, "copy_file", copy)


def test_the_root_shows_the_newest_request_and_the_last_result(folder: RunFolder) -> None:
    finish(group_of(prepared(folder, 1), "x"))
    publish(folder, Journal(folder))
    assert seen(folder) == {b"attempt 1", b"attempts/1/outputs-x"}
    prepared(folder, 2)
    publish(folder, Journal(folder))
    assert seen(folder) == {b"attempt 2", b"attempts/1/outputs-x"}


def test_the_result_is_shown_last(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def copy(storage: Storage, source: str, target: str) -> None:
        shown.append(target)
        copy_file(storage, source, target)

    monkeypatch.setattr(module, "copy_file", copy)
    finish(group_of(prepared(folder, 1), "x"))
    publish(folder, Journal(folder))
    assert shown[-1] == RESULT
    assert sorted(shown) == sorted((*REQUEST, *FILES))


@pytest.mark.parametrize("number", range(1, len(REQUEST) + len(FILES) + 1))
def test_one_that_was_paused_before_any_file_leaves_what_the_newest_attempt_showed(
    folder: RunFolder, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(group_of(prepared(folder, 1), "x"))

    def second_attempt() -> None:
        with monkeypatch.context() as undisturbed:
            undisturbed.setattr(module, "copy_file", copy_file)
            writer = group_of(prepared(folder, 2), "y")
            finish(writer)
            publish(folder, writer.journal)
            sweep(writer)

    pause_at(number, second_attempt, monkeypatch)
    publish(folder, Journal(folder))
    assert seen(folder) == {b"attempt 2", b"attempts/2/outputs-y"}


def test_a_copy_is_whole_replaces_what_was_there_and_may_be_made_again(storage: Storage) -> None:
    storage.write_bytes("from/a", b"new" * 1000)
    storage.write_bytes("to/b", b"old")
    for _ in range(2):
        copy_file(storage, "from/a", "to/b")
        assert storage.read_bytes("to/b") == storage.read_bytes("from/a") == b"new" * 1000
    assert [entry.key for entry in storage.list_files()] == ["from/a", "to/b"], "no part is left"
    storage.write_bytes("to/b", b"other")
    assert storage.read_bytes("from/a") == b"new" * 1000, "writing anew leaves the other alone"


def test_a_copy_on_a_disk_takes_no_room(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.write_bytes("a", b"weights")
    copy_file(storage, "a", "folder/b")
    assert (tmp_path / "a").stat().st_ino == (tmp_path / "folder/b").stat().st_ino


def test_copying_what_is_not_there_names_it(storage: Storage) -> None:
    assert "nothing-here" in fails(lambda: copy_file(storage, "nothing-here", "b"))
