"""What people see at the root of a run folder, whoever published it last."""

from collections.abc import Callable

import pytest

from tests.trainers.run_folder.writers import begin, group_of
from trainers.run_folder.checkpoints import sweep
from trainers.run_folder.fencing import Driver, GroupWriter
from trainers.run_folder.journal import REQUEST, Journal, publish
from trainers.run_folder.layout import METRICS, RESULT, RunFolder
from trainers.storage import Storage

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


def pause_at(folder: RunFolder, number: int, meanwhile: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has `meanwhile` happen right before copy number `number`, which its source was chosen for already."""
    copies, copy_file = 0, type(folder.storage).copy_file

    def copy(storage: Storage, source: str, target: str) -> None:
        nonlocal copies
        copies += 1
        if copies == number:
            meanwhile()
        copy_file(storage, source, target)

    monkeypatch.setattr(type(folder.storage), "copy_file", copy)


@pytest.mark.integration
def test_the_root_shows_the_newest_request_and_the_last_result(folder: RunFolder) -> None:
    finish(group_of(prepared(folder, 1), "x"))
    publish(folder, Journal(folder))
    assert seen(folder) == {b"attempt 1", b"attempts/1/outputs-x"}
    prepared(folder, 2)
    publish(folder, Journal(folder))
    assert seen(folder) == {b"attempt 2", b"attempts/1/outputs-x"}


def test_the_result_is_shown_last(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    copy_file = type(folder.storage).copy_file

    def copy(storage: Storage, source: str, target: str) -> None:
        shown.append(target)
        copy_file(storage, source, target)

    monkeypatch.setattr(type(folder.storage), "copy_file", copy)
    finish(group_of(prepared(folder, 1), "x"))
    publish(folder, Journal(folder))
    assert shown[-1] == RESULT
    assert sorted(shown) == sorted((*REQUEST, *FILES))


@pytest.mark.parametrize("number", range(1, len(REQUEST) + len(FILES) + 1))
@pytest.mark.integration
def test_one_that_was_paused_before_any_file_leaves_what_the_newest_attempt_showed(
    folder: RunFolder, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(group_of(prepared(folder, 1), "x"))
    copy_file = type(folder.storage).copy_file

    def second_attempt() -> None:
        with monkeypatch.context() as undisturbed:
            undisturbed.setattr(type(folder.storage), "copy_file", copy_file)
            writer = group_of(prepared(folder, 2), "y")
            finish(writer)
            publish(folder, writer.journal)
            sweep(writer)

    pause_at(folder, number, second_attempt, monkeypatch)
    publish(folder, Journal(folder))
    assert seen(folder) == {b"attempt 2", b"attempts/2/outputs-y"}
