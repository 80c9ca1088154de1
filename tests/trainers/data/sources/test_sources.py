from pathlib import Path

import pytest
from datasets import Dataset

from tests.s3 import FaultProxy
from tests.trainers.synthetic import speechlike, write_recording, write_rows
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.sources import fingerprint, opening
from trainers.data.sources.fingerprint import Kind
from trainers.data.sources.opening import Source, fingerprint_of, open_mixed_sources, open_sources
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


class TestMixedRecordings:
    def test_are_fingerprinted_as_training_data_is(self, tmp_path: Path) -> None:
        manifest = self._manifest(tmp_path)
        first = self._opened(str(manifest))
        assert (first.split, first.table["audio"].to_pylist()) == ("augment.noise_manifest", [str(tmp_path / "n.wav")])
        assert list(first.marks) == [str(tmp_path / "n.wav")]
        write_recording(tmp_path / "n.wav", speechlike(0.1, seed=2))
        assert self._opened(str(manifest)).fingerprint != first.fingerprint
        write_recording(tmp_path / "n.wav", speechlike(0.1, seed=1))
        assert self._opened(str(manifest)).fingerprint == first.fingerprint

    def test_in_a_bucket_the_manifest_decides_unless_metadata_is_asked_for(
        self, tmp_path: Path, s3_bucket: str, s3_endpoint: str
    ) -> None:
        options = StorageOptions(s3_endpoint)
        storage = open_storage(f"{s3_bucket}/mixed", options)
        storage.upload_file(self._manifest(tmp_path), "noise.csv")
        storage.upload_file(tmp_path / "n.wav", "n.wav")
        kinds: tuple[Kind, ...] = ("auto", "content", "metadata")
        before = [self._opened(storage.url("noise.csv"), kind, options).fingerprint for kind in kinds]
        storage.upload_file(write_recording(tmp_path / "n.wav", speechlike(0.2)), "n.wav")
        after = [self._opened(storage.url("noise.csv"), kind, options).fingerprint for kind in kinds]
        assert [one == other for one, other in zip(before, after, strict=True)] == [True, True, False]
        (tmp_path / "noise.csv").write_text("path,kind\nn.wav,hum\n")
        storage.upload_file(tmp_path / "noise.csv", "noise.csv")
        later = [self._opened(storage.url("noise.csv"), kind, options).fingerprint for kind in kinds]
        assert not {*later} & {*before, *after}

    def _manifest(self, folder: Path) -> Path:
        write_recording(folder / "n.wav", speechlike(0.1, seed=1))
        manifest = folder / "noise.csv"
        manifest.write_text("path\nn.wav\n")
        return manifest

    def _opened(self, location: str, kind: Kind = "auto", options: StorageOptions | None = None) -> Source:
        data = DataPart(train="/train.csv", validation="/valid.csv", fingerprint=kind)
        wanted = {"augment.noise_manifest": location}
        (source,) = open_mixed_sources(data, wanted, storage_options=options or StorageOptions())
        return source
