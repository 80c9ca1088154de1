"""The description that a run keeps for all its attempts: read back as it was written, or named."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainers.synthetic import config
from trainers.errors import ResumeError
from trainers.models.families import family_of
from trainers.models.processor import resolve_processor
from trainers.run_folder.layout import PROCESSOR, RunFolder
from trainers.storage import open_storage


def resolved(folder: Path) -> Any:
    model = config().model
    return resolve_processor(family_of(model), model, RunFolder(open_storage(str(folder))), ["one two", "three"])


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "SHA256.json"])
@pytest.mark.parametrize("kept", [0, 0.5])
def test_a_damaged_file_of_a_runs_processor_is_named(name: str, kept: float, tmp_path: Path) -> None:
    vocabulary = resolved(tmp_path).tokenizer.get_vocab()
    assert resolved(tmp_path).tokenizer.get_vocab() == vocabulary
    path = tmp_path / PROCESSOR / name
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(ResumeError, match=f"{PROCESSOR}/{name}: is missing or damaged"):
        resolved(tmp_path)


def test_another_token_is_never_trained_with(tmp_path: Path) -> None:
    resolved(tmp_path)
    path = tmp_path / PROCESSOR / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b'"b"', b'"B"', 1))
    with pytest.raises(ResumeError, match="is missing or damaged"):
        resolved(tmp_path)
