"""A preparation runs again where anything that it depends on has changed, and only there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainers.config.parts.script_part import ScriptPart
from trainers.scripts.inputs.prepare import hash_of_files, key_of

FIELDS = {
    "command": ["train.py", "--output_dir=out"],
    "prepare": ["make/prepare.py", "--config=make/corpus.cfg", "-" * 300],
}


def part(**changes: Any) -> ScriptPart:
    return ScriptPart.model_validate({**FIELDS, **changes})


@pytest.mark.parametrize(
    ("changes", "is_other"),
    [
        ({"prepare": ["make/prepare.py", "--all"]}, True),
        ({"env": {"LANGUAGE": "sr"}}, True),
        ({"working_dir": "sub"}, True),
        ({"python": "/venv/bin/python"}, True),
        ({"command": ["train.py", "--lr", "1"]}, False),
        ({"stop_grace_s": 10}, False),
    ],
)
def test_what_the_recipe_says_of_the_command_is_in_its_key(changes: dict[str, Any], is_other: bool) -> None:
    assert (key_of(part(**changes), "package") != key_of(part(), "package")) is is_other
    assert key_of(part(**changes), "other") != key_of(part(**changes), "package")


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        (lambda work: (work / "make/prepare.py").write_text("other"), True),
        (lambda work: (work / "make/corpus.cfg").write_text("other"), True),
        (lambda work: (work / "helper.py").write_text("other"), True),
        (lambda work: (work / "new.py").touch(), True),
        (lambda work: (work / "helper.py").unlink(), True),
        (lambda work: (work / "recording.wav").write_text("other"), False),
        # SpeechBrain copies the program into its output folder.
        (lambda work: ((work / "out/1986").mkdir(parents=True), (work / "out/1986/train.py").touch()), False),
        (lambda work: ((work / ".venv").mkdir(), (work / ".venv/a.py").touch()), False),
    ],
)
def test_of_a_program_that_lies_in_a_folder_its_files_count(
    tmp_path: Path, change: Callable[[Path], Any], is_other: bool
) -> None:
    (tmp_path / "make").mkdir()
    for name in ("make/prepare.py", "make/corpus.cfg", "helper.py", "recording.wav"):
        (tmp_path / name).write_text(name)
    before = hash_of_files(part(), tmp_path)
    assert hash_of_files(part(), tmp_path) == before
    change(tmp_path)
    assert (hash_of_files(part(), tmp_path) != before) is is_other
