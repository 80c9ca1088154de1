"""Inputs are fetched once a node and version, complete or not at all; manifests name local copies of recordings."""

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.folder_server import web_server
from tests.s3 import FAST_RETRY, FaultProxy
from trainers.config.storage_location import StorageOptions
from trainers.errors import DataError, StorageError
from trainers.scripts.inputs import fetch
from trainers.scripts.inputs.fetch import InputFetcher
from trainers.storage import Storage, open_storage


class Node:
    """A node with its cache, in front of a bucket."""

    def __init__(self, cache: Path, proxy: FaultProxy, bucket: str):
        self.cache, self.proxy, self.bucket = cache, proxy, bucket
        self.options = StorageOptions(proxy.url)
        self.said: list[str] = []

    @property
    def storage(self) -> Storage:
        return open_storage(self.bucket, self.options, retry=FAST_RETRY)

    def put(self, files: Mapping[str, str | bytes]) -> None:
        for key, content in files.items():
            self.storage.write_bytes(key, content if isinstance(content, bytes) else content.encode())

    def fetch(self, key: str, path_prefix: Mapping[str, str] | None = None) -> Path:
        """Fetches a key, or a URL, as a process that has just started."""
        url = key if "://" in key else f"{self.bucket}/{key}"
        return InputFetcher(self.cache, self.options, path_prefix or {}, self.said.append)(url)

    def gets(self, key: str) -> int:
        """How often an object's content was asked for."""
        return len([path for method, path in self.proxy.requests if method == "GET" and path.endswith(f"/{key}")])


@pytest.fixture
def node(tmp_path: Path, fault_proxy: FaultProxy, s3_bucket: str) -> Node:
    return Node(tmp_path / "cache", fault_proxy, s3_bucket)


def recordings_in(manifest: Path) -> list[str]:
    """The content of the recordings that a CSV names in its first column."""
    rows = manifest.read_text().splitlines()[1:]
    return [Path(row.partition(",")[0]).read_text() for row in rows]


def test_a_file_is_fetched_once_by_all_processes_of_a_node(node: Node) -> None:
    node.put({"in/model.bin": b"weights"})
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(node.fetch, ["in/model.bin"] * 4))
    (path,) = paths
    assert (path.name, path.read_bytes()) == ("model.bin", b"weights")
    assert node.gets("in/model.bin") == 1


def test_another_version_is_another_file(node: Node) -> None:
    node.put({"model.bin": b"first"})
    first = node.fetch("model.bin")
    node.put({"model.bin": b"other"})
    assert node.fetch("model.bin").read_bytes() == b"other"
    assert first.read_bytes() == b"first"


def test_a_folder_is_fetched_with_all_that_is_in_it_and_goes_on_where_it_was_cut(node: Node) -> None:
    node.put({"corpus/a.wav": "a", "corpus/deep/b.wav": "b", "corpus/train.csv": "path\na.wav\n", "corpus2/c.wav": "c"})
    node.proxy.fail_next(99, 403, "GET", error_code="AccessDenied", matches=lambda method, path: path.endswith("b.wav"))
    with pytest.raises(StorageError, match=r"deep/b\.wav"):
        node.fetch("corpus/")
    node.proxy.clear()
    folder = node.fetch("corpus/")
    files = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert files == {"a.wav": "a", "deep/b.wav": "b", "train.csv": "path\na.wav\n"}
    assert folder.name == "corpus" and node.fetch("corpus") == folder
    assert node.gets("corpus/a.wav") == 1


@pytest.mark.parametrize("key", ["missing.csv", "missing/"])
def test_an_input_that_is_not_there_is_named(node: Node, key: str) -> None:
    with pytest.raises(DataError, match=f"{node.bucket}/missing.*: there is no such file or folder"):
        node.fetch(key)


def test_a_manifest_names_copies_of_its_recordings(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    other = f"{node.bucket}/elsewhere/s1/c.wav"
    node.put({"in/clips/a.wav": "a", "in/b.wav": "b", "elsewhere/s1/c.wav": "c"})
    rows = ["clips/a.wav,one", "clips/../b.wav,two", f"{other},three", "clips/a.wav,four", "/home/me/s1/c.wav,five"]
    node.put({"in/train.csv": "\n".join(["path,text", *rows])})
    prefixes = {"/home/me/": f"{node.bucket}/elsewhere/", "/home/": "/nowhere/"}
    manifest = node.fetch("in/train.csv", prefixes)
    assert manifest.name == "train.csv"
    assert recordings_in(manifest) == ["a", "b", "c", "a", "c"]
    texts = [row.rpartition(",")[2] for row in manifest.read_text().splitlines()]
    assert texts == ["text", "one", "two", "three", "four", "five"]
    # Programs take speakers from folders' names.
    assert "/elsewhere/s1/c.wav" in manifest.read_text()
    # Another manifest of the same recordings fetches none again, whichever way it is asked what is there.
    monkeypatch.setattr(fetch, "MOST_ASKED_FOR", 0)
    node.put({"in/clips/a.wav": "changed", "in/valid.csv": "path,text\nclips/a.wav,one\nb.wav,two\n"})
    assert recordings_in(node.fetch("in/valid.csv")) == ["changed", "b"]
    assert [node.gets(key) for key in ("clips/a.wav", "in/b.wav", "s1/c.wav")] == [2, 1, 1]
    assert recordings_in(manifest) == ["a", "b", "c", "a", "c"]


def test_speechbrain_s_data_root_is_the_manifest_s_folder_or_a_prefix(node: Node) -> None:
    node.put({"in/x/a.wav": "here", "corpus/x/a.wav": "there"})
    node.put({"in/train.json": json.dumps({"u": {"wav": "{data_root}/x/a.wav", "length": 1.0}})})

    def wav(path: Path) -> str:
        return Path(json.loads(path.read_text())["u"]["wav"]).read_text()

    assert wav(node.fetch("in/train.json")) == "here"
    assert wav(node.fetch("in/train.json", {"{data_root}/": f"{node.bucket}/corpus/"})) == "there"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("gone.wav", "line 3: s3://test-.*/in/gone.wav: no such file: upload it, or say with script.path_prefix"),
        ("/node/gone.wav", "1 of 2 recordings are not there. line 3: /node/gone.wav: no such file"),
        ("hdfs://x/a.wav", "line 3: hdfs://x/a.wav: hdfs:// is not supported"),
        ("s3://b//a.wav", "line 3: s3://b//a.wav: storage key '/a.wav' is not a path"),
    ],
)
@pytest.mark.integration
def test_a_recording_that_is_not_there_is_named_with_its_row(node: Node, path: str, reason: str) -> None:
    node.put({"in/a.wav": "a", "in/train.csv": f"path,text\na.wav,one\n{path},two\n"})
    with pytest.raises(DataError, match=rf"in/train\.csv: .*{reason}"):
        node.fetch("in/train.csv")
    # Before any is fetched.
    assert node.gets("in/a.wav") == 0


def test_a_recording_that_cannot_be_read_is_named_and_the_others_are_not_fetched_again(node: Node) -> None:
    node.put({"a.wav": "a", "b.wav": "b", "train.csv": "path,text\na.wav,one\nb.wav,two\n"})
    node.proxy.fail_next(99, 403, "GET", error_code="AccessDenied", matches=lambda method, path: path.endswith("b.wav"))
    with pytest.raises(StorageError, match=r"train\.csv: line 3: s3://.*/b\.wav: cannot be fetched: .*"):
        node.fetch("train.csv")
    node.proxy.clear()
    assert recordings_in(node.fetch("train.csv")) == ["a", "b"]
    assert node.gets("a.wav") == 1
    assert any("2 recordings" in line for line in node.said)


def test_inputs_of_a_web_server(node: Node, tmp_path: Path) -> None:
    served = tmp_path / "served"
    (served / "clips").mkdir(parents=True)
    (served / "clips" / "a.wav").write_text("a")
    (served / "train.csv").write_text("path,text\nclips/a.wav?sig=1,one\nclips/a.wav?sig=2,two\n")
    with web_server(served, knows_ranges=False) as url:
        manifest = node.fetch(f"{url}/train.csv?token=secret")
        assert recordings_in(manifest) == ["a", "a"]
        with pytest.raises(DataError, match=r"/gone\.bin: there is no such file"):
            node.fetch(f"{url}/gone.bin")
    assert manifest.name == "train.csv"
    assert not any("secret" in line for line in node.said)


def test_what_no_run_has_used_for_days_is_removed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.put({f"{name}.wav": name for name in "abc"})
    node.put({f"{name}.csv": f"path,text\n{name}.wav,x\n" for name in "abc"})
    unused, used = node.fetch("a.csv"), node.fetch("b.csv")
    recordings = node.cache / "recordings"
    # The process that fetched this one has ended; the other one reads it still.
    for folder in [each for each in fetch._held if each.is_relative_to(node.cache)]:
        if (folder / "a.csv").exists():
            fetch._held.pop(folder).close()
    past = time.time() - fetch.UNUSED_S - 60
    for path in node.cache.rglob("*"):
        os.utime(path, (past, past))
    assert len([path for path in recordings.rglob("*") if path.is_file()]) == 2
    node.fetch("c.csv")
    assert not unused.exists()
    assert recordings_in(used) == ["b"]
    assert len([path for path in recordings.rglob("*") if path.is_file()]) == 2
