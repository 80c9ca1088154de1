"""Worker groups that are killed, or whose storage fails, at any call: no scored checkpoint is lost, nothing is left."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.settings import examples
from tests.trainers.run_folder.test_stale_writers import TurnedStorage
from tests.trainers.run_folder.writers import begin, staged
from trainers.distributed.session import LocalSession
from trainers.errors import StorageError
from trainers.run_folder.checkpoints import RetentionPolicy, upload_staged
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Journal, State
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.run_folder.resume import fetch_best, starting_point, take_over
from trainers.run_folder.staging import Staging
from trainers.storage import RetryPolicy
from trainers.storage.local_folder import LocalStorage

ALONE = LocalSession(0, 1, 0)
ONCE = RetryPolicy(attempts=1)
# Of each step.
WERS = (9.0, 4.0, 8.0, 7.0)


class Killed(BaseException):
    """Nothing catches it."""


@dataclass
class Failing:
    """Counts calls of a storage, and fails at one.

    Attributes:
        call: Which. None: none of them.
        kills: Whether the process dies there.
        dead: Whether it has.
    """

    call: int | None
    kills: bool
    dead: bool = field(default=False, init=False)

    def __call__(self) -> None:
        self.call = self.call - 1 if self.call is not None else None
        self.dead = self.dead or (self.kills and self.call == 0)
        if self.dead:
            raise Killed
        if self.call == 0:
            raise StorageError("away")


def train(root: str, retention: RetentionPolicy, wait: Callable[[], None]) -> int:
    """An attempt from where the last one came to its end; gives the step of the best checkpoint."""
    driver, staging = begin(RunFolder(LocalStorage(root, ONCE))), Staging.open("run", ALONE)
    writer = GroupWriter.of(RunFolder(TurnedStorage(root, ONCE, wait=wait)), driver.attempt, staging.group)
    try:
        take_over(staging, writer, retention, ALONE, managed_by_service=False)
        start = starting_point(staging, writer, ALONE)
        for step in range(start[0].step + 1 if start is not None else 1, len(WERS) + 1):
            name = f"a{driver.attempt}-{staging.group}"
            upload_staged(staged(staging.folder, step, WERS[step - 1], name), writer, retention)
        best = fetch_best(staging, writer, retention, ALONE)
    finally:
        staging.release()
    staging.remove()
    assert best is not None
    return best[0].step


def check(root: str, retention: RetentionPolicy, before: int) -> State:
    """The journal names the best and the newest of all that it ever named."""
    state = Journal(RunFolder(LocalStorage(root, ONCE))).read()
    entries = [json.loads(path.read_text()) for path in Path(root, "journal").iterdir()]
    ever = [entry["checkpoint"]["metrics"]["eval_wer"] for entry in entries if entry["kind"] == "checkpoint"]
    best = retention.best(state.checkpoints)
    assert (best.metrics["eval_wer"] if best is not None else None) == min(ever, default=None)
    assert max((item.step for item in state.checkpoints), default=0) >= before
    return state


@settings(max_examples=examples(8), deadline=None)
@given(
    failures=st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=3),
    num_to_keep=st.sampled_from([1, 2, None]),
)
def test_at_the_end_the_best_of_all_is_the_best_and_nothing_else_is_left(
    failures: list[tuple[int, bool]], num_to_keep: int | None
) -> None:
    retention, step = RetentionPolicy(num_to_keep, "eval_wer"), 0
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        # What power cuts do is not asked here.
        patch.setattr("os.fsync", lambda descriptor: None)
        patch.setattr("tempfile.tempdir", made)
        root = f"{made}/run"
        for call, kills in failures:
            try:
                train(root, retention, Failing(call, kills))
            except (Killed, StorageError):
                step = max((item.step for item in check(root, retention, step).checkpoints), default=step)
        assert WERS[train(root, retention, lambda: None) - 1] == min(WERS)
        state = check(root, retention, len(WERS))
        stored = {path.name for path in Path(root, CHECKPOINTS).iterdir()}
        assert stored == {item.name for item in state.checkpoints}
        assert not list(Path(root).rglob("*.rayscribe-part"))
        assert not list(Path(made).glob("rayscribe-staging-*/*/*"))
