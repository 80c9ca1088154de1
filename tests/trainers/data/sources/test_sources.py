from pathlib import Path

import pytest
from datasets import Dataset

from tests.s3 import FaultProxy
from tests.trainers.synthetic import speechlike, write_recording, write_rows
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.sources import fingerprint, opening
from trainers.data.sources.opening import Source, fingerprint_of, open_sources
from trainers.storage import Storage, open_storage

RECORDINGS = 12


def test_the_fingerprint_of_a_data_set_follows_its_content() -> None:
    one, same, other = (Dataset.from_dict({"text": [text]}) for text in ("a", "a", "b"))
    assert fingerprint_of(one) == fingerprint_of(same) != fingerprint_of(other)


class TestManifestInABucket:
    @pytest.fixture
    def corpus(self, s3_bucket: str, fault_proxy: FaultProxy, tmp_path: Path) -> Storage:
        """Twelve recordings of which the manifest names ten, one of them three times, and one that is not there."""
        storage = open_storage(f"{s3_bucket}/corpus", StorageOptions(fault_proxy.url))
        for number in range(RECORDINGS):
            storage.upload_file(write_recording(tmp_path / "x.wav", speechlike(0.1, seed=number)), f"{number}.wav")
        rows = [(f"{number}.wav", "text") for number in (*range(10), 3)]
        rows += [("gone.wav", "text"), ("s3://another-bucket/x.wav", "text"), ("a/../3.wav", "text")]
        storage.upload_file(write_rows(tmp_path / "train.csv", rows), "train.csv")
        fault_proxy.requests.clear()
        return storage

    def opened(self, corpus: Storage, fault_proxy: FaultProxy) -> Source:
        data = DataPart(train=corpus.url("train.csv"), validation="/nowhere.csv", fingerprint="metadata")
        (source,) = open_sources(data, storage_options=StorageOptions(fault_proxy.url), splits=("train",))
        return source

    def test_it_asks_for_what_it_names_and_lists_nothing(self, corpus: Storage, fault_proxy: FaultProxy) -> None:
        self.opened(corpus, fault_proxy)
        assert not [path for _, path in fault_proxy.requests if "list-type" in path]
        asked = [path.rpartition("/")[2] for method, path in fault_proxy.requests if method == "HEAD"]
        assert sorted(asked) == sorted([*(f"{number}.wav" for number in range(10)), "gone.wav"])

    def test_the_fingerprint_is_that_of_a_listing(self, corpus: Storage, fault_proxy: FaultProxy) -> None:
        source = self.opened(corpus, fault_proxy)
        listed = {corpus.url(entry.key): (entry.size_bytes, entry.modified_s) for entry in corpus.list_files()}
        stats = [listed.get(path) for path in source.table["audio"].to_pylist()]
        content = corpus.read_bytes("train.csv")
        assert source.fingerprint == opening._hash(content, ("path", "text"), stats)
        assert not source.note

    def test_of_very_many_a_part_is_asked_for_and_said(
        self, corpus: Storage, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for module in (fingerprint, opening):
            monkeypatch.setattr(module, "MOST_ASKED_FOR", 4)
        source = self.opened(corpus, fault_proxy)
        assert [method for method, _ in fault_proxy.requests].count("HEAD") == 4
        assert source.note == "size and time of 6 of 14 recordings decide whether it is prepared again"
        corpus.upload_file(write_recording(tmp_path / "x.wav", speechlike(0.2)), "0.wav")
        assert self.opened(corpus, fault_proxy).fingerprint != source.fingerprint
