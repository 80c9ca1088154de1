"""The same table in every form that names recordings, by whatever field: identical rows, or the same refusal."""

import bz2
import csv
import gzip
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainers.data.sources.archives.made_archives import recording
from tests.trainers.synthetic import speechlike, write_recording
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import prepare, run_in_process
from trainers.data.prepared_set import ClipReader, PreparedSet
from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.known_sources import open_sources
from trainers.errors import DataError

Rows = Sequence[Mapping[str, str]]


def delimited(rows: Rows, delimiter: str) -> str:
    file = io.StringIO(newline="")
    how: dict[str, Any] = {"quoting": csv.QUOTE_NONE, "quotechar": None} if delimiter == "\t" else {}
    writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter, **how)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def lines(rows: Rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_parquet(rows: Rows) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({name: pa.array([row[name] for row in rows], pa.string()) for name in rows[0]}), sink)
    return sink.getvalue()


def as_arrow(rows: Rows) -> bytes:
    table = pa.Table.from_pylist([dict(row) for row in rows])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


WRITERS: Mapping[str, Callable[[Rows], str | bytes]] = {
    "csv": lambda rows: delimited(rows, ","),
    "tsv": lambda rows: delimited(rows, "\t"),
    "jsonl": lines,
    "json": lambda rows: json.dumps(list(rows), indent=1),
    "ndjson": lines,
    "parquet": as_parquet,
    "arrow": as_arrow,
    "csv.gz": lambda rows: gzip.compress(delimited(rows, ",").encode()),
}
FORMS = [
    *(("manifest", kind) for kind in ("csv", "tsv", "jsonl", "json")),
    *(("dataset", kind) for kind in ("csv", "tsv", "jsonl", "json", "ndjson", "parquet", "arrow", "csv.gz")),
    *(("folder", kind) for kind in ("csv", "jsonl", "parquet")),
]


def write(root: Path, form: str, kind: str, rows: Rows) -> DataPart:
    """Writes a table below `root`, from whose folder `../clips` are the recordings, and names it."""
    table = root / "train" / f"train.{kind}"
    table.parent.mkdir(exist_ok=True)
    if form == "folder":
        rows = [{"file_name" if name == "path" else name: value for name, value in row.items()} for row in rows]
        table = table.with_name(f"metadata.{kind}")
        shutil.copy(root / "clips" / "0.wav", table.parent)
    content = WRITERS[kind](rows)
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    if form == "manifest":
        return DataPart(train=str(table), validation="/nowhere.csv")
    folder = root if form == "folder" else table.parent
    # Where the files are named, `datasets` is three times as fast.
    files = "train/*" if form == "folder" else table.name
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files: {files}\n---\n")
    part = {"name": str(folder), "test_split": None}
    return DataPart.model_validate({"dataset": part, "audio_column_name": "audio" if form == "folder" else "path"})


def opened(data: DataPart) -> SourceSplit:
    (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",))
    return source


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(3):
        write_recording(tmp_path / "clips" / f"{number}.wav", speechlike(0.2, seed=number))
    return tmp_path


def rows_of(texts: Sequence[str], **columns: Sequence[str]) -> list[dict[str, str]]:
    rows = [{"path": f"../clips/{number % 3}.wav", "text": text} for number, text in enumerate(texts)]
    for name, values in columns.items():
        rows = [{**row, name: value} for row, value in zip(rows, values, strict=True)]
    return rows


VERBATIM = [
    "0042",
    "null",
    "None",
    "NA",
    "nan",
    "True",
    "true",
    "2024-01-31",
    "1.0",
    "1e5",
    "",
    "N/A",
    " a ",
    '"so" "a',
]
SAME_ROWS = {
    "texts": rows_of(VERBATIM),
    "columns": rows_of(["1", "b", "c"], id=["x", "y", "007"], language=["no", "", "NA"], speaker=["1", "ana", ""]),
    "segments": rows_of(["a", "b"], offset=["0.5", ""], duration=["1", "2.25"]),
}


@pytest.mark.parametrize("name", SAME_ROWS)
@pytest.mark.parametrize(("form", "kind"), FORMS)
def test_the_same_table_is_the_same_rows(
    root: Path, form: str, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Recordings of these names in the working directory are others.
    (root / "elsewhere").mkdir()
    shutil.copytree(root / "clips", root / "clips_of_others")
    monkeypatch.chdir(root / "elsewhere")
    given = SAME_ROWS[name]
    expected = opened(write(root, "manifest", "jsonl", given)).table
    shutil.rmtree(root / "train")
    found = opened(write(root, form, kind, given)).table
    assert found.to_pylist() == expected.to_pylist()
    assert found["text"].to_pylist() == [row["text"] for row in given]
    assert found["audio"].to_pylist() == [os.path.normpath(root / "train" / row["path"]) for row in given]
    assert found["speaker"].to_pylist() == [row.get("speaker") or None for row in given]


REFUSED = {
    "bounds": rows_of(["a"], start=["1"], end=["2"]),
    "channel": rows_of(["a"], channel=["1"]),
    "half of a segment": rows_of(["a"], offset=["1"], length=["2"]),
    "case": rows_of(["a"], Language=["sr"]),
    "no seconds": rows_of(["a", "b"], duration=["1", "NA"]),
    "an offset below 0": rows_of(["a"], offset=["-1"]),
    "no recording": [*rows_of(["a", "b"]), {"path": " ", "text": "c"}],
    "no text": [{"path": "../clips/0.wav", "sentence": "a"}],
}


def refusal(data: DataPart) -> str:
    with pytest.raises(DataError) as caught:
        opened(data)
    # Without the place, which each form counts in its own way, and how it calls the column of recordings.
    found = re.search(r"(?:line|row|the column|no column) .*", str(caught.value))
    assert found is not None, caught.value
    told = re.sub(r"^(?:line|row) \d+:? ", "", found[0])
    return re.sub(r"among .*|, 'file_name'|'audio'|'path'|'file_name'", "", told)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize(("form", "kind"), [each for each in FORMS if each[1] in ("csv", "tsv", "jsonl", "parquet")])
def test_the_same_table_is_refused_alike(root: Path, form: str, kind: str, name: str) -> None:
    expected = refusal(write(root, "manifest", "csv", REFUSED[name]))
    shutil.rmtree(root / "train")
    assert refusal(write(root, form, kind, REFUSED[name])) == expected


@pytest.mark.parametrize(("form", "kind"), FORMS)
def test_a_recording_that_was_replaced_or_put_back_is_noticed(root: Path, form: str, kind: str) -> None:
    data, clip = write(root, form, kind, rows_of(["a", "b"])), root / "clips" / "1.wav"
    before, content = opened(data), clip.read_bytes()
    clip.write_bytes(recording(7, "WAV"))
    assert opened(data).fingerprint != before.fingerprint
    clip.unlink()
    assert opened(data).fingerprint != before.fingerprint
    clip.write_bytes(content)
    assert opened(data).fingerprint == before.fingerprint
    assert list(before.recording_fingerprints) == [str(root / "clips" / f"{number}.wav") for number in range(2)]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_replaced_recording_is_noticed_where_a_file_stores_none(root: Path, kind: str) -> None:
    clip = root / "clips" / "0.wav"
    audio = pa.array([{"bytes": None, "path": str(clip)}], AUDIO)
    data = write_files(root / "set", kind, [pa.table({"path": audio, "text": ["a"]})])
    before = opened(data)
    clip.write_bytes(recording(7, "WAV"))
    assert opened(data).fingerprint != before.fingerprint
    assert list(before.recording_fingerprints) == [str(clip)]


def test_contents_of_files_are_compared_where_these_are_asked_for(root: Path) -> None:
    fingerprints = []
    for text in ("a", "b"):
        data = write_stored(root, {"text": [text]}, [{"bytes": b"recording", "path": "a.wav"}])
        os.utime(root / "train" / "train.parquet", (0, 0))
        fingerprints.append(opened(data.model_copy(update={"fingerprint": "content"})).fingerprint)
        shutil.rmtree(root / "train")
    assert fingerprints[0] != fingerprints[1]


@pytest.mark.parametrize("form", ["manifest", "dataset", "folder"])
def test_quotes_in_two_texts_are_refused_or_read_as_written(root: Path, form: str) -> None:
    data = write(root, form, "csv", rows_of(["one", "two", "three", "four", "five"]))
    table = next((root / "train").glob("*.csv"))
    content = table.read_text()
    table.write_text(content.replace("two", '"two').replace("four", 'four"'))
    with pytest.raises(DataError, match="the quote that opens in line 3 closes in line 5, and what is between"):
        opened(data)
    source = opened(data.model_copy(update={"quoting": "none"}))
    assert source.table["text"].to_pylist() == ["one", '"two', "three", 'four"', "five"]
    # With other rows it is another set, and without quotes it is the same one.
    table.write_text(content.replace("two", '"two"'))
    assert opened(data).fingerprint != opened(data.model_copy(update={"quoting": "none"})).fingerprint
    table.write_text(content)
    assert opened(data).fingerprint == opened(data.model_copy(update={"quoting": "none"})).fingerprint


def test_languages_that_are_not_used_and_prefixes_of_paths_are_those_of_manifests(root: Path) -> None:
    data = write(root, "dataset", "csv", rows_of(["a"], language=["sr"]))
    used, unused = opened(data), opened(data.model_copy(update={"use_language_column": False}))
    assert (used.table["language"].to_pylist(), unused.table["language"].to_pylist()) == (["sr"], [None])
    assert used.fingerprint != unused.fingerprint
    moved = opened(data.model_copy(update={"path_prefix": {f"{root}/clips/": "/data/"}}))
    assert moved.table["audio"].to_pylist() == ["/data/0.wav"]


def test_splits_are_of_several_tables_each_with_its_own_folder(root: Path) -> None:
    for split, clip in (("train", "a"), ("validation", "b")):
        for part in range(2):
            folder = root / "set" / split / str(part)
            write_recording(folder / "same.wav", speechlike(0.1, seed=part))
            (folder / "metadata.csv").write_text(f"file_name,text\nsame.wav,{clip}{part}\n")
    named = {"name": str(root / "set"), "train_split": "validation+train[1:]", "test_split": None}
    source = opened(DataPart.model_validate({"dataset": named, "audio_column_name": "audio"}))
    assert source.table["text"].to_pylist() == ["b0", "b1", "a1"]
    places = ["validation/0", "validation/1", "train/1"]
    assert source.table["audio"].to_pylist() == [str(root / "set" / place / "same.wav") for place in places]
    assert source.table["id"].to_pylist() == ["same.wav", "same.wav#2", "same.wav#2#2"]
    assert source.table["row"].to_pylist() == [0, 1, 2]


def test_a_readme_that_says_how_to_parse_is_followed_or_refused(root: Path) -> None:
    data = write(root, "dataset", "csv", rows_of(["a, b"]))
    table = root / "train" / "train.csv"
    table.write_text('path|text\n../clips/0.wav|"a, b"\n')
    head = "---\nconfigs:\n- config_name: default\n  data_files: train.csv\n  "
    (table.parent / "README.md").write_text(f'{head}sep: "|"\n---\n')
    assert opened(data).table["text"].to_pylist() == ["a, b"]
    (table.parent / "README.md").write_text(f"{head}sep: '||'\n---\n")
    with pytest.raises(
        DataError, match=r"README of .* gives sep: '\|\|' for its tables, which is more than a character"
    ):
        opened(data)
    table.write_text("path\ttext\n../clips/0.wav\ta, b\n")
    (table.parent / "README.md").write_text(f'{head}sep: "\\t"\n---\n')
    assert opened(data).table["text"].to_pylist() == ["a, b"]
    (table.parent / "README.md").write_text(f"{head}skiprows: 1\n---\n")
    with pytest.raises(DataError, match="gives skiprows: 1 for its tables, which is not followed: write a manifest"):
        opened(data)


def test_the_table_of_an_audio_folder_is_text_and_the_only_one(root: Path) -> None:
    data, table = write(root, "folder", "parquet", rows_of(["a"])), root / "train" / "metadata.parquet"
    named = {"file_name": ["0.wav"], "note": [b"\xff"]}
    pq.write_table(pa.table({**named, "text": ["žena".encode()]}), table)
    assert opened(data).table["text"].to_pylist() == ["žena"]
    pq.write_table(pa.table({**named, "text": [b"\xff"]}), table)
    with pytest.raises(DataError, match=r"'text' is .* which is not text: fix it"):
        opened(data)
    pq.write_table(
        pa.Table.from_arrays([pa.array(["0.wav"])] + [pa.array(["a"])] * 2, ["file_name", "text", "text"]), table
    )
    with pytest.raises(DataError, match=r"metadata.parquet: the column 'text' is listed twice"):
        opened(data)
    table.with_suffix(".csv").write_text("file_name,text\n0.wav,a\n")
    with pytest.raises(DataError, match=r"metadata.* and .*metadata.* are tables of one folder: take one of them out"):
        opened(data)


def test_a_compressed_table_that_is_damaged_is_refused(root: Path) -> None:
    data = write(root, "dataset", "csv.gz", rows_of(["a", "b"]))
    table = root / "train" / "train.csv.gz"
    whole, second = gzip.compress(b"path,text\na.wav,a\n"), gzip.compress(b"b.wav,b\n")
    table.write_bytes(whole + second)
    assert opened(data).table["text"].to_pylist() == ["a", "b"]
    broken = bytes([second[0] ^ 1]) + second[1:]
    for content in (whole[:-6], whole[:-8] + bytes(8), whole + b"junk", whole + broken, whole + second[:-6]):
        table.write_bytes(content)
        with pytest.raises(DataError, match=r"train.csv.gz: it is damaged \(.*\): fetch it again"):
            opened(data)


def test_a_table_in_another_compression_says_how_to_unpack_it(root: Path) -> None:
    data = write(root, "dataset", "csv", rows_of(["a", "b"]))
    table = root / "train" / "train.csv"
    table.with_suffix(".csv.bz2").write_bytes(bz2.compress(table.read_bytes()))
    table.unlink()
    readme = root / "train" / "README.md"
    readme.write_text(readme.read_text().replace("train.csv", "train.csv.bz2"))
    with pytest.raises(DataError, match=r"train\.csv\.bz2: is compressed \(bzip2\): unpack it with bunzip2"):
        opened(data)


@pytest.mark.parametrize(("split", "more"), [("test", ", or to null to do without"), ("train", "$")])
def test_a_split_that_is_not_there_says_which_field_leaves_it_out(root: Path, split: str, more: str) -> None:
    write(root, "dataset", "csv", rows_of(["a"]))
    part = {"name": str(root / "train"), "validation_split": "train", f"{split}_split": "eval"}
    data = DataPart.model_validate({"dataset": part, "audio_column_name": "path"})
    fix = f"there is no split 'eval'; there are train: set data.dataset.{split}_split to one of them{more}"
    with pytest.raises(DataError, match=fix):
        open_sources(data, storage_options=StorageOptions(), splits=(split,))


def prepared(data: DataPart, folder: Path) -> PreparedSet:
    return prepare(
        opened(data),
        data,
        cache_url=str(folder),
        storage_options=StorageOptions(),
        run="test",
        runner=run_in_process,
        log=lambda line: None,
    )


def write_files(folder: Path, kind: str, tables: Sequence[pa.Table]) -> DataPart:
    folder.mkdir()
    for number, table in enumerate(tables):
        sink = io.BytesIO()
        if kind == "parquet":
            pq.write_table(table, sink)
        else:
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
        (folder / f"train-{number}.{kind}").write_bytes(sink.getvalue())
    part = {"name": str(folder), "test_split": None}
    return DataPart.model_validate({"dataset": part, "audio_column_name": "path"})


def labeled(names: Sequence[str], **columns: Sequence[Any]) -> pa.Table:
    features = {"language": {"names": names, "_type": "ClassLabel"}}
    return pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_each_file_of_a_split_is_read_by_its_own_schema(tmp_path: Path, kind: str) -> None:
    first = labeled(["sr", "en"], path=["a.wav", "b.wav"], text=["a", "b"], language=[0, 1], speaker=[1, 2])
    second = labeled(["en", "sr"], path=["c.wav"], text=["c"], language=[0], speaker=["x"], offset=[0.5])
    data = write_files(tmp_path / "set", kind, [first, second])
    source = opened(data)
    assert source.table["language"].to_pylist() == ["sr", "en", "en"]
    assert source.table["speaker"].to_pylist() == ["1", "2", "x"]
    assert source.table["offset_s"].to_pylist() == [0.0, 0.0, 0.5]
    alike = opened(write_files(tmp_path / "alike", kind, [first, first]))
    assert alike.table["id"].to_pylist() == ["a.wav", "b.wav", "a.wav#2", "b.wav#2"]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ({"path": ["b.wav"], "text": ["b"], "start": [1]}, "train-1.*the column 'start' says which part"),
        ({"path": ["b.wav"], "transcript": ["b"]}, "train-1.*no column 'text' among"),
        ({"audio": ["b.wav"], "text": ["b"]}, "train-1.*no column 'path' among"),
        ({"path": ["b.wav"], "text": [7]}, "train-1.*the column 'text' holds int64, not text: save it as text"),
        ({"path": ["b.wav"], "text": [True]}, "train-1.*the column 'text' holds bool, not text: save it as text"),
        ({"path": ["b.wav"], "text": ["b\0"]}, "train-1.*the column 'text' has a text with a NUL"),
        ({"path": ["b\0.wav"], "text": ["b"]}, "train-1.*the column 'path' has a text with a NUL"),
        (
            {"path": ["b.wav"], "text": ["b"], "offset": [timedelta(seconds=1)]},
            r"train-1.*the column 'offset' holds duration\[us\]: save it as a number of seconds",
        ),
        (
            {"path": [{"bytes": b"x"}], "text": ["b"]},
            "train-0.* and .*train-1.*'path' has the types string and st",
        ),
    ],
)
def test_files_of_a_split_that_differ_are_refused_by_name(
    tmp_path: Path, kind: str, second: Mapping[str, Any], problem: str
) -> None:
    data = write_files(tmp_path / "set", kind, [pa.table({"path": ["a.wav"], "text": ["a"]}), pa.table(dict(second))])
    with pytest.raises(DataError, match=problem):
        opened(data)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("how", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_text_is_text_in_whatever_way_arrow_holds_it(tmp_path: Path, kind: str, how: pa.DataType) -> None:
    table = pa.table({name: pa.array([name, "x"]).cast(how) for name in ("path", "text", "speaker")})
    rows = opened(write_files(tmp_path / "set", kind, [table])).table
    assert rows.select(["id", "text", "speaker"]).to_pylist()[0] == {"id": "path", "text": "text", "speaker": "speaker"}


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("name", ["path", "text", "id"])
def test_text_that_is_no_utf_8_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    _, offsets, content = pa.array([b"a", b"\xff"]).buffers()
    columns = {"path": pa.array(["a.wav", "b.wav"]), "text": pa.array(["a", "b"])}
    table = pa.table({**columns, name: pa.StringArray.from_buffers(2, offsets, content)})
    with pytest.raises(DataError, match="Invalid UTF8 sequence"):
        opened(write_files(tmp_path / "set", kind, [table]))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("name", ["path", "text", "language"])
def test_a_column_that_is_twice_in_a_file_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    columns = [*dict.fromkeys(("path", "text", name)), name]
    table = pa.Table.from_arrays([pa.array([column]) for column in columns], columns)
    with pytest.raises(DataError, match=f"train-0.{kind}: the column '{name}' is listed twice: rename one of them"):
        opened(write_files(tmp_path / "set", kind, [table]))


AUDIO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_stored(root: Path, columns: Mapping[str, Any], audio: Sequence[Mapping[str, Any]]) -> DataPart:
    (root / "train").mkdir()
    table = pa.table({"audio": pa.array(audio, AUDIO), **columns})
    features = {"language": {"names": ["en", "sr"], "_type": "ClassLabel"}}
    described = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(described), root / "train" / "train.parquet")
    part = {"name": str(root / "train"), "test_split": None}
    return DataPart.model_validate({"dataset": part, "audio_column_name": "audio"})


def test_columns_next_to_stored_recordings_follow_the_rules_of_manifests(root: Path) -> None:
    audio = [{"bytes": (root / "clips" / f"{number}.wav").read_bytes(), "path": "audio.wav"} for number in range(3)]
    columns: dict[str, Any] = {"text": ["a", "b", "c"], "speaker": [7, None, 8], "language": [1, -1, None]}
    columns |= {"offset": [0.1, 0.1, None], "duration": [0.1, 0.05, 0.05]}
    data = write_stored(root, columns, audio)
    source = opened(data)
    assert source.table["language"].to_pylist() == ["sr", None, None]
    assert source.table["speaker"].to_pylist() == ["7", None, "8"]
    assert source.table["offset_s"].to_pylist() == [0.1, 0.1, 0.0]
    # Recordings of one name are not one recording.
    clips = ClipReader(prepared(data, root / "prepared"), cache_bytes=1)
    for number, (first, end) in enumerate(((1600, 3200), (1600, 2400), (0, 800))):
        assert np.array_equal(clips.read(number), speechlike(0.2, seed=number)[first:end])


def test_bounds_next_to_stored_recordings_are_refused_until_they_are_ignored(root: Path) -> None:
    audio = [{"bytes": (root / "clips" / "0.wav").read_bytes(), "path": "0.wav"}]
    data = write_stored(root, {"text": ["a"], "begin_time": [1.5], "end_time": [2.5]}, audio)
    with pytest.raises(DataError, match=r"data.dataset: .*the column 'begin_time' .*name it in data.ignore_columns"):
        opened(data)
    source = opened(data.model_copy(update={"ignore_columns": ("begin_time", "end_time")}))
    assert source.table["offset_s"].to_pylist() == [None]


def test_paths_without_a_stored_recording_count_from_the_folder_of_their_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_stored(root, {"text": ["a"]}, [{"bytes": None, "path": "../clips/1.wav"}])
    (root / "clips_of_others").mkdir()
    monkeypatch.chdir(root / "clips_of_others")
    shutil.copytree(root / "clips", root / "clips_of_others" / "clips")
    (read,) = opened(data).reader.read(opened(data).table.to_pylist())
    assert read == (root / "clips" / "1.wav").read_bytes()
