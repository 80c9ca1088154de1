"""`--overwrite_output_dir` of a program that goes on from a checkpoint."""

from pathlib import Path

import pytest

from trainers.scripts.outputs.output_folder import note_on_overwriting, without_overwriting


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("--overwrite_output_dir", ""),
        ("--lr 1 --overwrite-output-dir --fp16", "--lr 1 --fp16"),
        ("--overwrite_output_dir True --lr 1", "--lr 1"),
        ("--overwrite_output_dir=1 --lr 1", "--lr 1"),
        ("--overwrite_output_dir False --lr 1", "--overwrite_output_dir False --lr 1"),
        ("--overwrite_output_dir=no", "--overwrite_output_dir=no"),
        ("--overwrite --fp16", "--fp16"),
        ("--overwrite-output=True --lr 1", "--lr 1"),
        ("--overwrite_cache True", "--overwrite_cache True"),
    ],
)
def test_it_is_left_out_where_it_is_turned_on(tmp_path: Path, words: str, left: str) -> None:
    command = ["train.py", *words.split()]
    assert without_overwriting(command) == ["train.py", *left.split()]
    note = note_on_overwriting(command, tmp_path)
    assert (note is not None and "left out when the run continues" in note) == (words != left)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("args.json", '{"output_dir": "out", "overwrite_output_dir": true}'),
        ("args.yaml", "overwrite_output_dir: true"),
        ("train.args", "--overwrite_output_dir --lr 1"),
    ],
)
def test_in_a_file_of_arguments_it_is_noted(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    note = note_on_overwriting(["train.py", file], tmp_path)
    assert note is not None and "it starts over at every restart" in note
    (tmp_path / file).write_text(text.replace("overwrite_output_dir", "resume"))
    assert note_on_overwriting(["train.py", file], tmp_path) is None


@pytest.mark.parametrize(
    ("words", "is_noted"),
    [
        (["bash", "-c", "python train.py --overwrite_output_dir --output_dir o"], True),
        (["train.py", "++training.overwrite_output_dir=True"], True),
        (["train.py", "overwrite_output_dir=true"], True),
        (["bash", "-c", "python train.py --overwrite_output_dir False"], False),
        (["train.py", "training.overwrite_output_dir=false"], False),
        (["train.py", "--no_overwrite_output_dir"], False),
    ],
)
def test_where_it_cannot_be_left_out_that_is_said(tmp_path: Path, words: list[str], is_noted: bool) -> None:
    assert without_overwriting(words) == words
    note = note_on_overwriting(words, tmp_path)
    assert (note is not None and "starts over at every restart" in note) == is_noted
