"""Arrow files, as `save_to_disk` writes them and in both of Arrow's formats: rows by file and number, on any node."""

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest

from tests.trainers.synthetic import speechlike, write_recording
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import prepare, run_in_process
from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.known_sources import open_sources
from trainers.data.sources.row_files.row_file import FILE, ROW
from trainers.errors import AudioError, DataError, StorageError

ROWS = 30


def wav(folder: Path, number: int) -> bytes:
    return write_recording(folder / "x.wav", speechlike(0.1 + number / 100, seed=number)).read_bytes()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    folder = tmp_path_factory.mktemp("recordings")
    audio = [{"bytes": wav(folder, number), "path": f"{number}.wav"} for number in range(ROWS)]
    return {"audio": audio, "sentence": [None if number == 5 else f"text {number}" for number in range(ROWS)]}


def saved(rows: dict[str, list[Any]]) -> datasets.Dataset:
    """As a data set that `datasets` has encoded; its own encoder asks for a package."""
    audio = pa.array(rows["audio"], pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    table = pa.table({"audio": audio, "sentence": pa.array(rows["sentence"], pa.string())})
    return datasets.Dataset(table).cast_column("audio", datasets.Audio(decode=False))


def data_of(folder: Path, **splits: str | None) -> DataPart:
    part = {"name": str(folder), "test_split": None, **splits}
    return DataPart.model_validate({"dataset": part, "audio_column_name": "audio", "text_column_name": "sentence"})


def opened(folder: Path, **splits: str | None) -> SourceSplit:
    (source,) = open_sources(data_of(folder, **splits), storage_options=StorageOptions(), splits=("train",))
    return source


def recordings_of(source: SourceSplit, file: Path | None = None) -> list[bytes | AudioError]:
    given = source.table.to_pylist()
    return list(source.reader.read(given if file is None else [{**row, FILE: str(file)} for row in given]))


def test_the_rows_of_a_data_set_that_was_saved_are_read_by_file_and_number(
    rows: dict[str, list[Any]], tmp_path: Path
) -> None:
    saved(rows).save_to_disk(tmp_path / "set", num_shards=3)
    source = opened(tmp_path / "set", train_split="train[8:25]")
    assert source.table.column_names[-2:] == [FILE, ROW]
    assert not [field for field in source.table.schema if pa.types.is_binary(field.type)]
    assert source.table["text"].to_pylist() == rows["sentence"][8:25]
    assert source.table["audio"].to_pylist() == [f"{number}.wav" for number in range(8, 25)]
    assert recordings_of(source) == [item["bytes"] for item in rows["audio"][8:25]]
    assert len(source.node_files) == 3
    made = prepare(
        source,
        data_of(tmp_path / "set"),
        cache_url=str(tmp_path / "prepared"),
        storage_options=StorageOptions(),
        run="test",
        runner=run_in_process,
        log=lambda line: None,
    )
    assert made.summary.prepared == 17


@pytest.mark.integration
def test_the_files_of_a_relative_folder_are_those_of_every_node(
    rows: dict[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(rows).save_to_disk(tmp_path / "set")
    monkeypatch.chdir(tmp_path)
    assert opened(Path("set")).node_files == [str(file) for file in (tmp_path / "set").glob("*.arrow")]


def test_the_splits_of_a_saved_dict_have_their_own_names(rows: dict[str, list[Any]], tmp_path: Path) -> None:
    whole = saved(rows)
    datasets.DatasetDict({"clean": whole.select(range(4)), "other": whole.select([9])}).save_to_disk(tmp_path / "set")
    # Of a data set that was saved there before.
    (tmp_path / "set" / "clean" / "data-00007-of-00009.arrow").write_bytes(b"")
    source = opened(tmp_path / "set", train_split="other+clean[:2]")
    assert source.table["text"].to_pylist() == ["text 9", "text 0", "text 1"]
    assert recordings_of(source) == [rows["audio"][number]["bytes"] for number in (9, 0, 1)]
    with pytest.raises(DataError, match="no split 'train'; there are clean, other"):
        opened(tmp_path / "set")


def test_the_rows_of_a_saved_dict_are_those_of_load_dataset(rows: dict[str, list[Any]], tmp_path: Path) -> None:
    parts = {"train": saved(rows), "validation": saved(rows).select([0])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "set")
    source = opened(tmp_path / "set", train_split="train[2:]")
    loaded = datasets.load_dataset(str(tmp_path / "set"), split="train[2:]")
    expected = loaded.cast_column("audio", datasets.Audio(decode=False))[:]
    assert source.table["text"].to_pylist() == [text or "" for text in expected["sentence"]]
    assert source.table["audio"].to_pylist() == [audio["path"] for audio in expected["audio"]]
    assert recordings_of(source) == [audio["bytes"] for audio in expected["audio"]]


@pytest.mark.parametrize("kind", ["stream", "file"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_both_formats_of_arrow_are_read_compressed_or_not(
    rows: dict[str, list[Any]], tmp_path: Path, kind: str, compression: str | None
) -> None:
    table = saved(rows).data.table
    new = {"stream": pa.ipc.new_stream, "file": pa.ipc.new_file}[kind]
    options = pa.ipc.IpcWriteOptions(compression=compression)
    for split in ("train", "validation"):
        with new(str(tmp_path / f"{split}.arrow"), table.schema, options=options) as writer:
            for batch in table.to_batches(max_chunksize=7):
                writer.write_batch(batch)
    source = opened(tmp_path, train_split="train[5:]+train[:3]")
    chosen = [*range(5, ROWS), 0, 1, 2]
    assert recordings_of(source) == [rows["audio"][number]["bytes"] for number in chosen]
    assert source.table["audio"].to_pylist() == [f"{number}.wav" for number in chosen]


def test_recordings_that_are_only_named_are_read_from_their_paths(tmp_path: Path) -> None:
    paths = [str(write_recording(tmp_path / f"{number}.wav", speechlike(0.1, seed=number))) for number in range(2)]
    table = datasets.Dataset.from_dict({"audio": [*paths, None], "sentence": ["a", "b", "c"]})
    table.select([0, 1]).save_to_disk(tmp_path / "set")
    assert recordings_of(opened(tmp_path / "set")) == [Path(path).read_bytes() for path in paths]
    # As in every table of paths.
    table.save_to_disk(tmp_path / "gap")
    with pytest.raises(DataError, match="row 3 has an empty 'audio': fill it in, or take the row out"):
        opened(tmp_path / "gap")


def test_a_row_with_neither_a_recording_nor_its_path_says_so(rows: dict[str, list[Any]], tmp_path: Path) -> None:
    saved({"audio": [rows["audio"][0], None], "sentence": ["a", "b"]}).save_to_disk(tmp_path / "set")
    read = recordings_of(opened(tmp_path / "set"))
    assert (read[0], str(read[1])) == (rows["audio"][0]["bytes"], "its row has neither a recording nor a path")


def test_a_file_that_was_replaced_or_is_damaged_or_gone_is_named(rows: dict[str, list[Any]], tmp_path: Path) -> None:
    saved(rows).save_to_disk(tmp_path / "set")
    saved(rows).select([0]).save_to_disk(tmp_path / "other")
    source = opened(tmp_path / "set")
    with pytest.raises(StorageError, match=r"has 1 rows, but row 29 is needed"):
        recordings_of(source, next((tmp_path / "other").glob("*.arrow")))
    with pytest.raises(StorageError, match=r"/nowhere.arrow: cannot be read here.*every node"):
        recordings_of(source, Path("/nowhere.arrow"))
    (tmp_path / "set" / "state.json").write_text(json.dumps({"_data_files": None}))
    with pytest.raises(DataError, match=r"state.json: cannot be read .*: save the data set again"):
        opened(tmp_path / "set")


def test_an_offset_that_leads_out_of_its_batch_is_damage(rows: dict[str, list[Any]], tmp_path: Path) -> None:
    saved({name: values[:3] for name, values in rows.items()}).save_to_disk(tmp_path / "set")
    source = opened(tmp_path / "set")
    (file,) = (tmp_path / "set").glob("*.arrow")
    sizes = [len(item["bytes"]) for item in rows["audio"][:3]]
    offsets = b"".join(sum(sizes[:number]).to_bytes(4, "little") for number in range(4))
    content = file.read_bytes()
    assert content.count(offsets) == 1
    file.write_bytes(content.replace(offsets, offsets[:-4] + (2**30).to_bytes(4, "little")))
    with pytest.raises(DataError, match=r"this Arrow file is damaged \(.*: fetch it again"):
        recordings_of(source)
