"""Checkpoints of programs are recognized, with their steps, and told from those that are not complete."""

import os
from pathlib import Path

import pytest

from tests.trainers.scripts.outputs.programs import (
    begin_trainer_checkpoint,
    save_archive,
    write_brain_checkpoint,
    write_trainer_checkpoint,
)
from trainers.errors import ConfigError
from trainers.scripts.outputs.layouts import (
    MARKED_STABLE_S,
    FoundCheckpoint,
    Watch,
    find,
    layouts_for,
    remove_checkpoint,
    shows_its_end,
    signature_of,
)

KNOWN = layouts_for("auto")


def paths(folder: Path, pattern: str) -> list[str]:
    return [item.path for item in find(folder, layouts_for(pattern))]


def test_those_of_the_trainer_are_complete_once_its_state_is_there(tmp_path: Path) -> None:
    write_trainer_checkpoint(tmp_path, 100)
    write_trainer_checkpoint(tmp_path / "second", 9)
    begin_trainer_checkpoint(tmp_path, 200)
    (tmp_path / "checkpoint-best").mkdir()
    assert find(tmp_path, KNOWN) == [
        FoundCheckpoint("second/checkpoint-9", 9, True, True),
        FoundCheckpoint("checkpoint-100", 100, True, True),
        FoundCheckpoint("checkpoint-200", 200, False, True),
    ]


def test_half_of_a_state_is_no_mark(tmp_path: Path) -> None:
    state = write_trainer_checkpoint(tmp_path, 3) / "trainer_state.json"
    state.write_text(state.read_text()[:-20])
    assert [item.is_marked_whole for item in find(tmp_path, KNOWN)] == [False]


def test_those_of_speechbrain_have_the_steps_of_the_brain_and_no_last_file(tmp_path: Path) -> None:
    second, first = write_brain_checkpoint(tmp_path, 20), write_brain_checkpoint(tmp_path, 10)
    assert find(tmp_path, KNOWN) == [
        FoundCheckpoint(first.relative_to(tmp_path).as_posix(), 10, True),
        FoundCheckpoint(second.relative_to(tmp_path).as_posix(), 20, True),
    ]


def test_one_of_speechbrain_has_more_than_what_is_written_first(tmp_path: Path) -> None:
    path = write_brain_checkpoint(tmp_path, 20)
    for file in path.glob("*.ckpt"):
        file.unlink()
    assert [item.is_marked_whole for item in find(tmp_path, KNOWN)] == [False]


@pytest.mark.parametrize(("counter", "step"), [("7", 7), ("current_epoch: 7\nbest_epoch: 2\n", 7), ("", None)])
def test_without_a_brain_the_epoch_counter_says_the_step(tmp_path: Path, counter: str, step: int | None) -> None:
    path = write_brain_checkpoint(tmp_path, 20)
    (path / "brain.ckpt").unlink()
    (path / "counter.ckpt").write_text(counter)
    assert [item.step for item in find(tmp_path, KNOWN)] == [step]


@pytest.mark.parametrize("left_bytes", [10, -1])
def test_a_cut_archive_is_seen(tmp_path: Path, left_bytes: int) -> None:
    model = write_brain_checkpoint(tmp_path, 20) / "model.ckpt"
    assert [item.is_marked_whole for item in find(tmp_path, KNOWN)] == [True]
    model.write_bytes(model.read_bytes()[:left_bytes])
    assert [item.is_marked_whole for item in find(tmp_path, KNOWN)] == [False]


def test_files_that_may_be_cut_unseen_do_not_show_their_end(tmp_path: Path) -> None:
    path = write_brain_checkpoint(tmp_path, 20)
    assert shows_its_end(path)
    (path / "tokenizer.txt").write_bytes(b"a" * 5000)
    assert not shows_its_end(path)
    (path / "tokenizer.txt").write_bytes(b"")
    assert not shows_its_end(path)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("ckpt/step-*", ["ckpt/step-2", "ckpt/step-10"]),
        ("ckpt/step-[0-9]", ["ckpt/step-2"]),
        ("**/step-*", ["ckpt/step-2", "ckpt/step-10"]),
        ("ckpt", ["ckpt"]),
        ("*.pt", ["last.pt"]),
        ("**/*.pt", ["last.pt", "ckpt/step-2/model.pt", "ckpt/step-10/model.pt"]),
        ("last.???", []),
    ],
)
def test_a_pattern_is_one_of_paths(tmp_path: Path, pattern: str, found: list[str]) -> None:
    for number, name in enumerate(("last.pt", "ckpt/step-2/model.pt", "ckpt/step-10/model.pt")):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        save_archive(file, b"x")
        os.utime(file, (number, number))
    assert paths(tmp_path, pattern) == found


@pytest.mark.parametrize("pattern", ["", "/tmp/*", "../*", "a/../../b", "**"])
def test_a_pattern_of_other_places_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"script\.checkpoints"):
        layouts_for(pattern)


def test_a_checkpoint_that_vanishes_while_it_is_looked_at_is_none(tmp_path: Path) -> None:
    path = write_trainer_checkpoint(tmp_path, 3)
    remove_checkpoint(path)
    assert (find(tmp_path, KNOWN), signature_of(path)) == ([], ())


def test_what_changes_is_watched_anew(tmp_path: Path) -> None:
    now = [0.0]
    watch = Watch(lambda: now[0])
    path = begin_trainer_checkpoint(tmp_path, 3)
    assert watch.look(path) == (signature_of(path), 0.0)
    now[0] = MARKED_STABLE_S
    assert watch.look(path)[1] == MARKED_STABLE_S
    (path / "trainer_state.json").write_text("{}")
    assert watch.look(path)[1] == 0.0
