"""Attempts and worker groups that pause and wake at any point: whatever the order, readers see one true story.

Each runs the real code in a thread of its own, and stops before every touch of the storage until it is its turn. The
order of turns is Hypothesis's to choose, and so is deterministic.
"""

import json
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.settings import examples
from tests.trainers.run_folder.writers import same_experiment, staged
from trainers.errors import FencedError
from trainers.run_folder.checkpoints import RetentionPolicy, fetch, list_checkpoints, quarantine, sweep, upload_staged
from trainers.run_folder.fencing import Driver, GroupWriter
from trainers.run_folder.journal import REQUEST, Journal, State, accepted_metrics, fold, publish
from trainers.run_folder.layout import CHECKPOINTS, JOURNAL, METRICS, RESULT, RunFolder
from trainers.storage import RetryPolicy
from trainers.storage.base import Entry
from trainers.storage.local_folder import LocalStorage

KEEP_ONE = RetentionPolicy(1, "eval_wer")
OUTPUTS = ("model/weights", METRICS, RESULT)
ATTEMPTS = (1, 2, 3)
# Who takes turns: three attempts, and a second worker group of each, as Ray Train starts it when a node is cut off.
ACTORS = [*((number, name) for number in ATTEMPTS for name in ("first", "second"))]


@dataclass(frozen=True)
class TurnedStorage(LocalStorage):
    """A folder that waits for the caller's turn before each call."""

    wait: Callable[[], None] = field(default=lambda: None, compare=False)

    def sub(self, prefix: str) -> "TurnedStorage":
        return TurnedStorage(self.url(prefix) if prefix else self.root, self.retry, wait=self.wait)

    def read_bytes(self, key: str) -> bytes:
        self.wait()
        return super().read_bytes(key)

    def write_bytes(self, key: str, data: bytes) -> None:
        self.wait()
        super().write_bytes(key, data)

    def append_line(self, key: str, line: str) -> None:
        self.wait()
        super().append_line(key, line)

    def copy_file(self, source: str, target: str) -> None:
        self.wait()
        super().copy_file(source, target)

    def exists(self, key: str) -> bool:
        self.wait()
        return super().exists(key)

    def list_files(self, prefix: str = "") -> list[Entry]:
        self.wait()
        return super().list_files(prefix)

    def list_folders(self, prefix: str = "", *, start: str = "") -> list[str]:
        self.wait()
        return super().list_folders(prefix, start=start)

    def delete(self, key: str) -> None:
        self.wait()
        super().delete(key)

    def _delete_all(self, folder: str) -> None:
        self.wait()
        super()._delete_all(folder)

    def create_exclusive(self, key: str, data: bytes) -> bool:
        self.wait()
        return super().create_exclusive(key, data)

    def upload_file(self, local: Path, key: str) -> None:
        self.wait()
        super().upload_file(local, key)


class Actor(threading.Thread):
    """A process of the run that moves only when told to."""

    def __init__(self, play: Callable[[RunFolder], None], root: str):
        super().__init__(daemon=True)
        self._play, self._root = play, root
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.ended = False
        self.fault: Exception | None = None
        self.start()

    def step(self, count: int) -> None:
        """Has it make so many touches of the storage, or come to its end."""
        for _ in range(count):
            if not self.ended:
                self._go.release()
                assert self._stopped.acquire(timeout=30), "the actor waits for something else than its turn"

    def run(self) -> None:
        self._go.acquire()
        try:
            self._play(RunFolder(TurnedStorage(self._root, RetryPolicy(attempts=1), wait=self._turn)))
        except Exception as error:
            self.fault = error
        self.ended = True
        self._stopped.release()

    def _turn(self) -> None:
        self._stopped.release()
        self._go.acquire()


def drive(folder: RunFolder, number: int, staging: Path) -> None:
    """An attempt: a driver that prepares, then its first worker group."""
    driver = Driver.open(folder, Journal(folder), number, same_experiment)
    assert driver is not None
    for name in REQUEST:
        driver.own.storage.write_bytes(name, f"attempt {number}".encode())
    driver.append(lambda state: {"kind": "prepared", "attempt": number, "processor": None})
    publish(folder, driver.journal)
    train(folder, number, "first", staging)


def train(folder: RunFolder, number: int, name: str, staging: Path) -> None:
    """A worker group: opens, trains two steps from the newest checkpoint, finds the one before damaged, delivers."""
    writer = GroupWriter.of(folder, number, f"{number}{name}")
    state = writer.open(1)
    sweep(writer)
    begin = max((item.step for item in state.checkpoints), default=0)
    for step in (begin + 1, begin + 2):
        folder.storage.append_line(writer.group.metrics_key, json.dumps({"step": step, "by": writer.group.id}))
        path = staged(staging, step, wer=float(step % 3), name=f"a{number}-{writer.group.id}")
        upload_staged(path, writer, KEEP_ONE)
    older = writer.check().checkpoints[:-1]
    if older:
        quarantine(writer, older[0].name)
    outputs = folder.sub(writer.group.outputs)
    for file in OUTPUTS:
        outputs.storage.write_bytes(file, writer.group.outputs.encode())
    entry = {"kind": "finished", "attempt": number, "outputs": writer.group.outputs, "files": OUTPUTS, "result": {}}
    writer.append(lambda state: entry)
    publish(folder, writer.journal)


class Reader:
    """Looks at the run folder now and then, and remembers what must never change."""

    def __init__(self, root: str, scratch: Path):
        self._folder = RunFolder(LocalStorage(root, RetryPolicy(attempts=1)))
        self._scratch = scratch
        self._entries: list[dict[str, Any]] = []
        self._sealed: dict[str, bytes] = {}
        self._outputs: dict[str, list[bytes]] = {}
        self._step = 0

    def look(self) -> State:
        """Reads everything as our own readers do, and compares it with what was read before."""
        state = Journal(self._folder).read()
        self._check_entries()
        self._check_checkpoints()
        self._check_metrics(state)
        if state.finished is not None:
            files = [self._read(f"{state.finished.outputs}/{name}") for name in state.finished.files]
            assert self._outputs.setdefault(state.finished.outputs, files) == files, "results changed once named"
        return state

    def state_read(self) -> tuple[Any, ...]:
        """Everything that is read, by programs and by people."""
        state = Journal(self._folder).read()
        files = {name: self._read(name) for name in (*REQUEST, *OUTPUTS)}
        return state, list_checkpoints(self._folder), accepted_metrics(self._folder, state), files

    def look_at_the_end(self) -> None:
        """The root shows what the journal names, whoever published last."""
        state = self.look()
        assert state.finished is not None and state.prepared is not None
        assert [self._read(name) for name in state.finished.files] == self._outputs[state.finished.outputs]
        assert {self._read(name) for name in REQUEST} == {f"attempt {state.prepared}".encode()}

    def _check_entries(self) -> None:
        files = self._folder.storage.list_files(JOURNAL)
        entries = [json.loads(self._read(entry.key)) for entry in files]
        assert entries[: len(self._entries)] == self._entries, "an entry changed or went"
        self._entries = entries
        state = State()
        for number, entry in enumerate(entries, 1):
            assert entry["number"] == number
            if entry["kind"] == "checkpoint":
                assert entry["checkpoint"]["name"].endswith(f"-{state.group}"), "a stale group entered a checkpoint"
            if entry["kind"] == "finished":
                assert entry["outputs"].endswith(f"-{state.group}"), "a stale group entered a result"
            if entry["kind"] == "prepared":
                assert entry["attempt"] == state.attempt, "a stale driver entered its request"
            state = fold(state, entry)

    def _check_checkpoints(self) -> None:
        found = list_checkpoints(self._folder)
        for item in found:
            # Raises where a file is missing or has other bytes.
            fetch(self._folder.storage.sub(CHECKPOINTS), item, self._scratch / item.name)
        last = max((item.step for item in found), default=0)
        assert last >= self._step, "the run went back"
        self._step = last

    def _check_metrics(self, state: State) -> None:
        lines = accepted_metrics(self._folder, state)
        for group in state.groups:
            if group.sealed_bytes is not None:
                own = b"".join(line for line in lines.splitlines(True) if f'"{group.id}"'.encode() in line)
                assert self._sealed.setdefault(group.id, own) == own, "sealed metrics changed"
                assert len(own) == group.sealed_bytes

    def _read(self, key: str) -> bytes:
        return self._folder.storage.read_bytes(key)


def play_of(number: int, name: str, staging: Path) -> Callable[[RunFolder], None]:
    """What an actor does."""
    if name == "first":
        return lambda folder: drive(folder, number, staging)
    return lambda folder: train(folder, number, name, staging)


@settings(max_examples=examples(40), deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(0, len(ACTORS) - 1), st.integers(1, 40)), max_size=25),
    last=st.permutations(range(len(ACTORS))),
)
@pytest.mark.integration
def test_readers_see_one_true_story_whoever_pauses_and_wakes_when(
    turns: list[tuple[int, int]], last: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        # What power cuts do is not asked here.
        patch.setattr("os.fsync", lambda descriptor: None)
        root = f"{made}/run"
        actors = [Actor(play_of(*who, Path(made) / f"disk-{index}"), root) for index, who in enumerate(ACTORS)]
        reader = Reader(root, Path(made) / "scratch")
        for index, count in turns:
            actors[index].step(count)
            reader.look()
        # An attempt that is later than all of them runs to its end; then every one that is left wakes.
        final = Actor(play_of(len(ATTEMPTS) + 1, "first", Path(made) / "disk"), root)
        while not final.ended:
            final.step(1)
        assert final.fault is None
        reader.look_at_the_end()
        before = reader.state_read()
        for index in last:
            while not actors[index].ended:
                actors[index].step(15)
                reader.look()
        reader.look_at_the_end()
        assert reader.state_read() == before, "an attempt that woke changed what is read"
        assert [repr(actor.fault) for actor in actors if not is_told(actor.fault)] == []


def is_told(fault: BaseException | None) -> bool:
    """Whether an actor has ended well or as it should: fenced, or, where no attempt was open yet, without a journal."""
    return isinstance(fault, FencedError | None) or "the journal, which attempt" in str(fault)
