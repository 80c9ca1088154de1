"""Audio folders, JSON and CSV: `datasets` parses them, and the nodes read the recordings that they name."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.data.sources.archives.made_archives import recording, text, write_tar
from tests.trainers.data.sources.archives.test_archived_sources import COUNT, cuts_of
from tests.trainers.data.sources.row_files import hub_server
from tests.trainers.synthetic import speechlike, write_recording
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import prepare, run_in_process
from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.known_sources import open_sources
from trainers.errors import AudioError, DataError

TEXTS = ["a", "b", "c"]


def data_of(folder: Path, split: str) -> DataPart:
    part = {"name": str(folder), "train_split": split, "test_split": None}
    return DataPart.model_validate({"dataset": part, "audio_column_name": "audio", "text_column_name": "sentence"})


def opened(folder: Path, split: str = "train") -> SourceSplit:
    (source,) = open_sources(data_of(folder, split), storage_options=StorageOptions(), splits=("train",))
    return source


def write_recordings(folder: Path) -> list[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [write_recording(folder / f"{number}.wav", speechlike(0.1, seed=number)) for number in range(3)]
    return [path.read_bytes() for path in paths]


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_an_audio_folder_names_its_recordings_and_misses_none(tmp_path: Path, name: str) -> None:
    recordings = write_recordings(tmp_path / "train" / "clips")
    rows = [(f"clips/{number}.wav", text) for number, text in enumerate(TEXTS)] + [("clips/gone.wav", "d")]
    keys = ("file_name", "sentence")
    lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    content = lines if name.endswith("jsonl") else [",".join(keys), *map(",".join, rows)]
    (tmp_path / "train" / name).write_text("\n".join(content) + "\n")
    source = opened(tmp_path, "train[1:]")
    assert source.table["audio"].to_pylist() == [
        str(tmp_path / "train" / "clips" / f"{name}.wav") for name in (1, 2, "gone")
    ]
    assert source.table["text"].to_pylist() == ["b", "c", "d"]
    assert source.has_file_per_recording
    *read, missing = source.reader.read(source.table.to_pylist())
    assert read == recordings[1:]
    assert isinstance(missing, AudioError)
    data = data_of(tmp_path, "train").model_copy(update={"max_bad_fraction": 0.5})
    made = prepare(
        opened(tmp_path),
        data,
        cache_url=str(tmp_path / "prepared"),
        storage_options=StorageOptions(),
        run="test",
        runner=run_in_process,
        log=lambda line: None,
    )
    assert (made.summary.prepared, made.quarantine[0]["reason"]) == (3, "no such file")


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_the_paths_of_json_and_csv_count_from_their_folder(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings = write_recordings(tmp_path / "clips")
    (tmp_path / "lists").mkdir()
    rows = [("../clips/0.wav", "a"), (str(tmp_path / "clips" / "1.wav"), "b"), ("../clips/2.wav", "c")]
    keys = ("audio", "sentence")
    lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    content = lines if kind == "jsonl" else [",".join(keys), *map(",".join, rows)]
    (tmp_path / "lists" / f"train.{kind}").write_text("\n".join(content) + "\n")
    source = opened(tmp_path / "lists")
    assert source.table["audio"].to_pylist() == [str(tmp_path / "clips" / f"{number}.wav") for number in range(3)]
    assert list(source.reader.read(source.table.to_pylist())) == recordings
    # Whatever the working directory has.
    monkeypatch.chdir(tmp_path / "lists")
    assert opened(tmp_path / "lists").table == source.table


def test_what_datasets_would_decode_itself_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write_tar(tmp_path / "shards" / "train-0.tar", [("a.flac", recording(0)), ("a.txt", b"a")])
    with pytest.raises(DataError, match=r"shards of WebDataset \(.*train-0\.tar\): name them as data\.train: webd"):
        opened(tmp_path / "shards")
    write_recordings(tmp_path / "clips" / "train")
    (tmp_path / "clips" / "train" / "metadata.csv").write_text("file_name,sentence\n0.wav,a\n")
    (tmp_path / "zipped").mkdir()
    shutil.make_archive(str(tmp_path / "zipped" / "train"), "zip", tmp_path / "clips" / "train")
    with pytest.raises(DataError, match=r"train\.zip is packed: unpack it"):
        opened(tmp_path / "zipped")
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "train.txt").write_text("a text\n")
    with pytest.raises(DataError, match="by the builder 'text' of `datasets` alone: save it with save_to_disk"):
        opened(tmp_path / "lines")


def test_a_column_without_paths_and_a_split_that_is_not_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"audio": 7, "sentence": "x"}) + "\n")
    with pytest.raises(DataError, match=r"data.dataset: .*train.jsonl: line 1: 'audio' is 7: write it as a string"):
        opened(tmp_path)
    with pytest.raises(DataError, match="no split 'dev'; there are train"):
        opened(tmp_path, "dev")
    (tmp_path / "train.jsonl").write_text(json.dumps({"audio": "a.wav", "text": "x"}) + "\n")
    with pytest.raises(DataError, match=r"no column 'sentence' among audio, text: set data.text_column_name to 'text'"):
        opened(tmp_path)


def read_from_hub(folder: Path, home: Path, *location: str) -> tuple[dict[str, Any], list[str]]:
    """What a driver and a node find in a data set on the Hub, and the requests for its files."""
    *_, last = (result := run_on_hub(folder, home, *location))[0].splitlines()
    return json.loads(last), result[1]


def run_on_hub(folder: Path, home: Path, *location: str) -> tuple[str, list[str]]:
    """The same, with all that is printed."""
    server = subprocess.Popen([sys.executable, hub_server.__file__, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home)}
        command = [sys.executable, "-m", "tests.trainers.data.sources.row_files.hub_reader", *location]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    finally:
        server.terminate()
        requests = server.communicate()[0].splitlines()
    return result.stdout, [line for line in requests if line.startswith("GET /datasets/")]


@pytest.mark.integration
def test_the_recordings_of_an_audio_folder_on_the_hub_are_fetched_by_who_reads_them(tmp_path: Path) -> None:
    sizes = [len(each) for each in write_recordings(tmp_path / "set" / "data" / "clips")]
    lines = ["file_name,sentence", "clips/0.wav,0042", "clips/gone.wav,null", "clips/2.wav,c"]
    (tmp_path / "set" / "data" / "metadata.csv").write_text("\n".join(lines) + "\n")
    found, requests = read_from_hub(tmp_path / "set", tmp_path / "home")
    assert found == {"texts": ["0042", "null", "c"], "read": [sizes[0], "no such file", sizes[2]]}
    fetched = Counter(line.rpartition("/")[2] for line in requests if line.endswith(".wav"))
    assert fetched == {"0.wav": 1, "2.wav": 1}
    assert not list((tmp_path / "home").rglob("*.wav"))


@pytest.mark.parametrize(("path", "is_own"), [("../clips/1.wav", True), ("../../../x.wav", False)])
@pytest.mark.integration
def test_paths_in_a_data_set_on_the_hub_stay_within_it(tmp_path: Path, path: str, is_own: bool) -> None:
    (size, *_) = [len(each) for each in write_recordings(tmp_path / "set" / "clips")]
    (tmp_path / "set" / "data").mkdir()
    (tmp_path / "set" / "data" / "train.jsonl").write_text(json.dumps({"audio": path, "sentence": "x"}) + "\n")
    found, _ = read_from_hub(tmp_path / "set", tmp_path / "home")
    if is_own:
        assert found == {"texts": ["x"], "read": [size]}
    else:
        assert "the recording 'hf://datasets/x.wav' is not one of the data set's own files" in found["error"]


@pytest.mark.parametrize(("suffix", "mode"), [(".tar", "w"), (".tar.gz", "w:gz")])
@pytest.mark.integration
def test_shards_on_the_hub_are_read_in_ranges(suffix: str, mode: str, tmp_path: Path) -> None:
    for shard, numbers in enumerate(([0, 1], [2, 3])):
        members = [
            member
            for number in numbers
            for member in ((f"u{number}.flac", recording(number)), (f"u{number}.txt", text(number).encode()))
        ]
        write_tar(tmp_path / "set" / f"train-{shard}{suffix}", members, mode)
    where = f"webdataset:hf://datasets/me/set/train-{{0..1}}{suffix}"
    found, _ = read_from_hub(tmp_path / "set", tmp_path / "home", where)
    assert found == {
        "texts": [text(number) for number in range(4)],
        "read": [len(recording(number)) for number in range(4)],
    }
    assert not list((tmp_path / "home").rglob(f"*{suffix}"))


@pytest.mark.integration
def test_folders_on_the_hub_are_listed(tmp_path: Path) -> None:
    repository, chapter = tmp_path / "set", tmp_path / "set" / "dev" / "84" / "7"
    for folder in (repository / "shar", chapter):
        folder.mkdir(parents=True)
    cuts_of(tmp_path / "flacs").to_shar(str(repository / "shar"), fields={"recording": "flac"}, shard_size=3)
    (chapter / "84-7.trans.txt").write_text("84-7-0000 a\n84-7-0001 b\n")
    for number in range(2):
        (chapter / f"84-7-{number:04d}.flac").write_bytes(recording(number))
    found, _ = read_from_hub(repository, tmp_path / "home", "shar:hf://datasets/me/set/shar")
    assert found["texts"] == list(map(text, range(COUNT)))
    assert all(isinstance(size, int) for size in found["read"])
    found, _ = read_from_hub(repository, tmp_path / "home", "librispeech:hf://datasets/me/set/dev")
    assert found == {"texts": ["a", "b"], "read": [len(recording(number)) for number in range(2)]}
    found, _ = read_from_hub(repository, tmp_path / "home", "librispeech:hf://datasets/me/set/none")
    assert "there is no *.trans.txt below it" in found["error"]


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ('{"audio": "1.wav", "sentence": "b"}\n', "train-1.jsonl"),
        ('[{"audio": "1.wav", "sentence": "b"}]', "train-1.json"),
        ("audio,sentence\n1.wav,b\n", "train-1.CSV"),
        ("PAR1", "train-1.parquet"),
    ],
)
def test_tables_of_a_split_that_are_of_another_kind_are_never_left_out(tmp_path: Path, other: str, name: str) -> None:
    for number in (0, 2):
        (tmp_path / f"train-{number}.csv").write_text(f"audio,sentence\n{number}.wav,a\n")
    (tmp_path / name).write_text(other)
    with pytest.raises(DataError, match=rf"train-0.csv is read, and 1 table .* would be ignored: {name}; .*, save all"):
        opened(tmp_path)
    # A README says that it is not meant.
    (tmp_path / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: '*.csv'\n---\n")
    assert opened(tmp_path).table["text"].to_pylist() == ["a", "a"]


@pytest.mark.integration
def test_tables_of_another_kind_that_a_set_on_the_hub_has_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for number in (0, 2, 3, 4, 5):
        (folder / f"train-{number}.csv").write_text(f"audio,sentence\n{number}.wav,a\n")
    for name in ("train-1.jsonl", "train-2.json", "train-2.parquet", "train.json"):
        (folder / name).write_text('{"audio": "1.wav", "sentence": "b"}\n')
    printed, _ = run_on_hub(folder, tmp_path / "home")
    (warning,) = (line for line in printed.splitlines() if line.startswith("warning: "))
    assert re.search(
        r"data.dataset: hf://datasets/me/set@0+: train-0.csv is read, and 3 tables of other kinds would be ignored: "
        "train-1.jsonl, train-2.json, train-2.parquet;",
        warning,
    )
    assert json.loads(printed.splitlines()[-1])["texts"] == ["a"] * 5
    (folder / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: '*.csv'\n---\n")
    assert "warning: " not in run_on_hub(folder, tmp_path / "other_home")[0]


def test_settings_and_files_of_no_split_next_to_tables_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("audio,sentence\n0.wav,a\n")
    (tmp_path / "train-2.csv").write_text("audio,sentence\n2.wav,b\n")
    (tmp_path / "train.json").write_text('{"rows": 2}')
    (tmp_path / "speakers.parquet").write_text("PAR1")
    assert sorted(opened(tmp_path).table["text"].to_pylist()) == ["a", "b"]
