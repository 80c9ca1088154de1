"""A command that prepares data runs once per run; all nodes have what it wrote."""

import json
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trainers.errors import DamagedError, ProgramError, ScriptError, StorageError
from trainers.run_folder.layout import RunFolder
from trainers.scripts.inputs import prepare
from trainers.scripts.inputs.prepare import prepare_data
from trainers.storage import Storage

pytestmark = pytest.mark.parametrize("storage", ["local", "s3"], indirect=True)


class DictBoard:
    """A board in one process; `is_deaf`: it loses what is posted."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.is_deaf = False

    def post(self, topic: str, value: Any) -> None:
        if not self.is_deaf:
            self.values[topic] = pickle.loads(pickle.dumps(value))

    def posted(self, topic: str) -> Any | None:
        return self.values.get(topic)


class Group:
    """A worker group of two nodes that share a storage only."""

    def __init__(self, storage: Storage, nodes: Path):
        self.folder, self.nodes = RunFolder(storage), nodes
        self.board, self.said = DictBoard(), list[str]()
        self.ran: list[Path] = []

    @property
    def stored(self) -> Storage:
        """What is stored of the data."""
        return self.folder.storage.sub("data/key")

    def run(self, into: Path) -> None:
        """Writes what names its own folder, as scripts that prepare manifests do."""
        self.ran.append(into)
        (into / "wavs").mkdir()
        (into / "wavs" / "a.wav").write_bytes(b"RIFF\0")
        (into / "train.csv").write_text(f"ID,wav\na,{into}/wavs/a.wav\nb,{into}2/b.wav\n")

    def into(self, node: str) -> Path:
        return self.nodes / node / "data"

    def prepare(self, node: str, run: Callable[[Path], None] | None = None, *, is_main: bool, key: str = "key") -> Path:
        into, say = self.into(node), self.said.append
        prepare_data(key, self.folder, into, run or self.run, is_main=is_main, board=self.board, say=say)
        return into


@pytest.fixture
def group(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    monkeypatch.setattr(prepare, "POLL_S", 0.01)
    return Group(storage, tmp_path / "nodes")


def test_the_main_process_prepares_and_the_others_have_it(group: Group) -> None:
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(group.prepare, "other", is_main=False)
        main = group.prepare("main", is_main=True)
        assert other.result(timeout=60) == group.into("other")
    assert group.ran == [main]
    for node in ("main", "other"):
        into = group.into(node)
        assert (into / "wavs" / "a.wav").read_bytes() == b"RIFF\0"
        assert (into / "train.csv").read_text() == f"ID,wav\na,{into}/wavs/a.wav\nb,{group.into('main')}2/b.wav\n"
    # A later attempt, on other nodes, whose board knows nothing.
    group.board.values.clear()
    assert group.prepare("third", is_main=True) == group.into("third")
    assert (group.into("third") / "wavs" / "a.wav").exists()
    assert len(group.ran) == 1
    group.prepare("main", is_main=True, key="other")
    assert len(group.ran) == 2


def test_the_storage_answers_where_the_board_does_not(group: Group) -> None:
    group.board.is_deaf = True
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(group.prepare, "other", is_main=False)
        group.prepare("main", is_main=True)
        assert (other.result(timeout=60) / "train.csv").exists()


def test_a_command_that_fails_ends_all_with_its_exit_code(group: Group) -> None:
    def failing(into: Path) -> None:
        group.run(into)
        raise ScriptError.of("script.prepare: python ended with exit code 7", 7, 0.0, final=True)

    for is_main in (True, False):
        with pytest.raises(ScriptError, match="exit code 7") as caught:
            group.prepare("node", failing, is_main=is_main)
        assert (caught.value.exit_code, caught.value.final) == (7, True)
    # The next attempt starts afresh, without what this one left.
    group.board.values.clear()
    group.prepare("node", is_main=True)
    assert len(group.ran) == 2


def test_any_error_of_the_main_process_reaches_the_others(group: Group) -> None:
    def broken(error: Exception) -> Callable[..., None]:
        def run(*_: object) -> None:
            raise error

        return run

    for error, kind in ((StorageError("the bucket is away"), StorageError), (ValueError("a bug"), ProgramError)):
        with pytest.raises(type(error)):
            group.prepare("main", broken(error), is_main=True)
        with pytest.raises(kind, match=str(error)):
            group.prepare("other", is_main=False)


def test_what_was_cut_short_is_prepared_again_and_what_is_damaged_is_said(group: Group) -> None:
    group.prepare("main", is_main=True)
    storage = group.stored
    storage.delete("MANIFEST.json")
    storage.write_bytes("files-killed/train.csv", b"half")
    group.prepare("main", is_main=True)
    assert len(group.ran) == 2
    manifest = json.loads(storage.read_bytes("MANIFEST.json"))
    assert storage.list_folders() == [manifest["below"]]
    # What a node has already is verified, too.
    (group.into("main") / "wavs" / "a.wav").write_bytes(b"RIFX\0")
    group.prepare("main", is_main=True)
    assert (group.into("main") / "wavs" / "a.wav").read_bytes() == b"RIFF\0"
    storage.write_bytes(f"{manifest['below']}/wavs/a.wav", b"RIFX\0")
    with pytest.raises(DamagedError, match=r"a\.wav differs from its SHA-256: delete .*MANIFEST\.json"):
        group.prepare("other", is_main=False)
    assert not (group.into("other") / "wavs" / "a.wav").exists()


@pytest.mark.parametrize("name", ["../outside", "/outside"])
@pytest.mark.integration
def test_a_manifest_that_leads_out_of_the_folder_is_refused(group: Group, name: str) -> None:
    group.prepare("main", is_main=True)
    storage = group.stored
    manifest = json.loads(storage.read_bytes("MANIFEST.json"))
    storage.write_bytes("MANIFEST.json", json.dumps(manifest | {"files": {name: {"sha256": ""}}}).encode())
    with pytest.raises(StorageError, match="outside"):
        group.prepare("other", is_main=False)


def test_of_two_attempts_at_once_the_first_to_be_stored_counts(group: Group) -> None:
    """The other may be one that was taken for dead."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(into: Path) -> None:
        begun.set()
        go_on.wait(60)
        (into / "train.csv").write_text("late")

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(group.prepare, "late", slow, is_main=True)
        begun.wait(60)
        group.prepare("main", is_main=True)
        go_on.set()
        assert (late.result(timeout=60) / "train.csv").read_text().startswith("ID,wav")
    assert len(group.stored.list_folders()) == 1


def test_a_storage_that_is_away_while_the_command_runs_ends_nobody(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [None, None, "ready"]

    class Later(DictBoard):
        def posted(self, topic: str) -> str | None:
            return answers.pop(0)

    def refuse(self: Storage, key: str) -> bool:
        raise StorageError("away")

    monkeypatch.setattr(prepare, "_POLLS_OF_BOARD", 1)
    monkeypatch.setattr(type(group.stored), "exists", refuse)
    prepare._await_main(group.stored, Later(), "data/key")
    assert answers == []
