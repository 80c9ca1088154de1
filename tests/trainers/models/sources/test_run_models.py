"""Which folder is meant by a run whose model is asked for."""

from pathlib import Path

import pytest

from tests.trainers.run_folder.writers import first_group
from trainers.config.storage_location import StorageOptions
from trainers.errors import ConfigError
from trainers.models.sources.run_models import find_model
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage

LAST = "checkpoint-8-a1-x"


def message_of(folder: Path) -> str:
    with pytest.raises(ConfigError) as error:
        find_model(str(folder), StorageOptions())
    return str(error.value)


def test_of_a_run_that_has_not_finished_a_checkpoint_is_named_if_it_has_one(tmp_path: Path) -> None:
    assert "give a run folder, or a folder with a model" in message_of(tmp_path)
    writer = first_group(RunFolder(open_storage(str(tmp_path))))
    assert "continue it" in message_of(tmp_path) and "it has no checkpoint yet" in message_of(tmp_path)
    checkpoint = {"name": LAST, "step": 8, "attempt": 1, "metrics": {}, "created": "x", "files": {}}
    writer.append(lambda _: {"kind": "checkpoint", "checkpoint": checkpoint, "removes": []})
    assert "it has no checkpoint yet" in message_of(tmp_path), "an adapter's has no model of its own"
    folder = tmp_path / "checkpoints" / LAST
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert message_of(tmp_path).endswith(f"or name a checkpoint: {folder}")
    assert find_model(str(folder), StorageOptions()) == str(folder)
