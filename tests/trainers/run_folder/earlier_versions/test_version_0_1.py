"""Run folders and prepared sets as version 0.1 wrote them, in version_0_1: weights and recordings left out.

`interrupted` was killed at step 4 of 6 in its second attempt, whose first checkpoint-4 had been damaged; `finished` is
the same experiment, undisturbed.
"""

import json
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.metrics_lines import metrics_of
from tests.trainers.run_folder.earlier_versions.tiny_corpus import TEXTS, TINY_WHISPER, of_tiny_corpus
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions
from trainers.data.prepared_set import find
from trainers.data.sources.known_sources import open_sources
from trainers.pipeline.continuation import decide, finished, previous_config, resolve_config
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.pipeline.splits import OpenedData
from trainers.run_folder.attempt_status import Phase, read_status
from trainers.run_folder.checkpoints import MANIFEST, RetentionPolicy, list_checkpoints, read_manifest
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.storage import open_storage

OF_0_1 = Path(__file__).parent / "version_0_1"
# The prepared sets of 0.1; a recording's size and time of change are part of the key.
DATA_KEYS = {
    "train": "28a152e648a2a1ec33c1c3fe062dd7c7",
    "validation": "01a03dcbbfa19e24964430dc64a5d3d7",
    "test": "5b0b36cf5f4919490cfa3c3972c16e2d",
}


def config_of(folder: Path, name: str) -> TrainConfig:
    """The config of both runs, its recordings made anew."""
    return of_tiny_corpus(folder, name, TINY_WHISPER | {"checkpoint.num_to_keep": 3})


def copy_of(folder: Path, name: str) -> RunFolder:
    """A run folder of 0.1, to be written to."""
    shutil.copytree(OF_0_1 / name, folder / "runs" / name)
    return RunFolder(open_storage(str(folder / "runs" / name)))


def test_the_journal_the_checkpoints_the_status_and_the_metrics_are_read(tmp_path: Path) -> None:
    folder = copy_of(tmp_path, "interrupted")
    state = Journal(folder).read()
    assert (state.number, state.attempt, state.group) == (10, 2, "4b16f596")
    assert (state.prepared, state.processor, state.finished) == (2, 1, None)
    assert state.quarantined == {"checkpoint-4-a1-b25b00ef"}
    checkpoints = list_checkpoints(folder)
    assert [item.name for item in checkpoints] == ["checkpoint-2-a1-b25b00ef", "checkpoint-4-a2-4b16f596"]
    assert [read_manifest(folder.storage.sub(CHECKPOINTS), item.name) for item in checkpoints] == checkpoints
    assert RetentionPolicy(1, "eval_wer").best(checkpoints) == checkpoints[1]
    status = read_status(folder, 2)
    assert status is not None
    assert (status["phase"], status["step"], status["max_steps"]) == (Phase.TRAINING, 4, 6)
    assert [line["step"] for line in metrics_of(folder, state) if "eval_wer" in line] == [2, 4, 4]


def test_the_same_config_and_data_are_still_the_same_experiment(tmp_path: Path) -> None:
    settings = config_of(tmp_path, "interrupted")
    folder = copy_of(tmp_path, "interrupted")
    state = Journal(folder).read()
    sources = open_sources(resolve_config(state, settings).data, storage_options=StorageOptions())
    keys = OpenedData(sources, (), {}).keys(settings.data, state)
    assert [keys[split] for split in ("train", "validation")] == [DATA_KEYS["train"], DATA_KEYS["validation"]]
    continuation = decide(folder.url, state, previous_config(folder, state), settings, keys)
    assert state.experiment is not None
    assert continuation.experiment["id"] == state.experiment["id"]
    assert (continuation.changes, continuation.exact) == ((), True)
    assert continuation.config.data.normalizer == "whisper_basic", "the only one of that version"
    assert not finished(state, folder, settings, keys)


def test_a_prepared_set_is_found(tmp_path: Path) -> None:
    cache = open_storage(str(OF_0_1 / "prepared"))
    found = find(cache, DATA_KEYS["train"], StorageOptions())
    assert found is not None
    assert found.summary.rows == found.summary.prepared == len(TEXTS["train"])
    assert found.quarantine == []


def test_a_finished_run_that_is_asked_for_again_gives_its_result(tmp_path: Path) -> None:
    folder = copy_of(tmp_path, "finished")
    finish = Journal(folder).read().finished
    assert finish is not None
    for key in finish.files:
        if not folder.storage.exists(f"{finish.outputs}/{key}"):
            folder.storage.write_bytes(f"{finish.outputs}/{key}", b"left out")
    result = fit(config_of(tmp_path, "finished"), LocalEngine())
    assert result.headline == f"WER 100.0% on test (2 utterances) · {folder.url}"
    status = read_status(folder, 1)
    assert status is not None
    assert status["phase"] == Phase.ENDED
    assert folder.read_json("result.json") == finish.result
    assert Journal(folder).read().number == 7, "asking again adds nothing"


@pytest.mark.integration
def test_an_interrupted_run_continues_to_the_weights_of_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The id of its runs is always the same: what another process of this test has staged must not be taken over.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    undisturbed = RunFolder(open_storage(fit(config_of(tmp_path, "undisturbed"), LocalEngine()).folder))
    interrupted = copy_of(tmp_path, "interrupted")
    _fill_in_files(interrupted, undisturbed)
    fit(config_of(tmp_path, "interrupted"), LocalEngine())
    state = Journal(interrupted).read()
    assert state.finished is not None
    assert state.finished.attempt == 3
    assert [line["step"] for line in metrics_of(interrupted) if "eval_wer" in line] == [2, 4, 4, 6]
    assert [item.step for item in state.checkpoints] == [2, 4, 6]
    for key in ("model/model.safetensors", "evaluation/test.jsonl"):
        assert interrupted.storage.read_bytes(key) == undisturbed.storage.read_bytes(key), key


def _fill_in_files(folder: RunFolder, source: RunFolder) -> None:
    """Gives the checkpoints of a folder of 0.1 the files of another run, since weights differ between processors."""
    files_of = {item.step: (item.name, item.files) for item in list_checkpoints(source)}
    for path in sorted(Path(folder.url).glob("journal/*.json")):
        entry = json.loads(path.read_text())
        if entry["kind"] != "checkpoint":
            continue
        checkpoint = entry["checkpoint"]
        name, files = files_of[checkpoint["step"]]
        assert set(checkpoint["files"]) == set(files), "a checkpoint of 0.1 has the files of one of today"
        checkpoint["files"] = files
        path.write_text(json.dumps(entry))
        target = Path(folder.url, CHECKPOINTS, checkpoint["name"])
        shutil.copytree(Path(source.url, CHECKPOINTS, name), target, dirs_exist_ok=True)
        (target / MANIFEST).write_text(json.dumps(checkpoint))
