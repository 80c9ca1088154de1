"""Labels that are kept next to the index: the ids that the tokenizer gives, encoded once."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainers.prepared import prepared_train
from tests.trainers.synthetic import config, write_corpus
from trainers.config.storage_location import StorageOptions
from trainers.data.prepared_set import PreparedSet
from trainers.errors import DataError
from trainers.models.ctc.ctc_family import CtcFamily
from trainers.models.ctc.ctc_part import CtcPart
from trainers.models.families import family_of
from trainers.models.labels import Labels, labels_of
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.storage import open_storage

TEXTS = ["one two three", "", "четири пет", "six, seven!", "eight"]


GERMAN: Any = config({"model.language": "German"}).model


class Counting(WhisperFamily):
    """Counts the texts that it encodes."""

    def __init__(self) -> None:
        self.encoded = 0

    def encode_labels(self, processor: Any, texts: Any) -> list[list[int]]:
        self.encoded += len(texts)
        return super().encode_labels(processor, texts)


@pytest.fixture(scope="module")
def processor() -> Any:
    return family_of(config().model).new_processor(TEXTS * 20, config().model)


@pytest.fixture(params=["folder", "bucket"])
def prepared(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreparedSet:
    """The five texts; the node has no file of them yet."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    manifest = write_corpus(tmp_path, TEXTS, durations_s=[0.3] * len(TEXTS))
    url, options = str(tmp_path / "prepared"), StorageOptions()
    if request.param == "bucket":
        url = f"{request.getfixturevalue('s3_bucket')}/prepared"
        options = StorageOptions(request.getfixturevalue("s3_endpoint"))
    return prepared_train(manifest, url, options)


def test_they_are_the_ids_that_the_tokenizer_gives(prepared: PreparedSet, processor: Any) -> None:
    expected = WhisperFamily().encode_labels(processor, TEXTS)
    labels = labels_of(prepared, WhisperFamily(), processor)
    assert [labels[position] for position in range(len(labels))] == expected
    assert labels.lengths.tolist() == [len(ids) for ids in expected]
    again: Labels = pickle.loads(pickle.dumps(labels))
    assert [again[position] for position in range(len(again))] == expected


def test_texts_are_encoded_once_for_all_processes_and_nodes(
    prepared: PreparedSet, processor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = Counting()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: labels_of(prepared, family, processor), range(8)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "another node"))
    labels_of(pickle.loads(pickle.dumps(prepared)), family, processor)
    assert family.encoded == len(TEXTS)


def test_another_prefix_or_vocabulary_has_labels_of_its_own(prepared: PreparedSet, processor: Any) -> None:
    family = Counting()
    fingerprint = family.labels_fingerprint(processor)
    labels_of(prepared, family, processor)
    other = family.new_processor(["eins zwei drei vier"] * 20, GERMAN)
    labels = labels_of(prepared, family, other)
    assert family.labels_fingerprint(other) != fingerprint
    assert [labels[position] for position in range(len(labels))] == family.encode_labels(other, TEXTS)


def test_a_processor_that_was_used_saved_and_opened_again_is_the_same(processor: Any, tmp_path: Path) -> None:
    fingerprint = WhisperFamily().labels_fingerprint(processor)
    processor.tokenizer(TEXTS, padding=True, truncation=True, max_length=3)
    processor.save_pretrained(tmp_path / "saved")
    opened = family_of(config().model).open_processor(config().model, tmp_path / "saved")
    assert WhisperFamily().labels_fingerprint(opened) == WhisperFamily().labels_fingerprint(processor) == fingerprint


@pytest.mark.parametrize("prepared", ["folder"], indirect=True)
def test_a_set_that_cannot_be_written_has_its_labels_on_the_node(
    prepared: PreparedSet, processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, read_only = Counting(), open_storage("/proc/rayscribe")
    monkeypatch.setattr(type(read_only), "upload_file", lambda self, local, key: read_only.write_bytes("x", b""))
    for _ in range(2):
        labels = labels_of(prepared, family, processor)
    assert np.array_equal(labels.lengths, [len(ids) for ids in WhisperFamily().encode_labels(processor, TEXTS)])
    assert family.encoded == len(TEXTS)
    assert not list(Path(prepared.url).glob("labels-*"))


def test_the_index_is_read_once_a_node(prepared: PreparedSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another node than the one that has prepared the set.
    (tmp_path / "node").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))
    read = []
    storage = type(prepared.storage)
    download = storage.download_file

    def counting(self: Any, key: str, local: Path) -> None:
        read.append(key)
        download(self, key, local)

    monkeypatch.setattr(storage, "download_file", counting)
    others = [PreparedSet(prepared.url, prepared.key, prepared.storage_options) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        indexes = list(pool.map(lambda each: each.index, others))
    assert all(index.equals(indexes[0]) for index in indexes)
    assert indexes[0]["text"].to_pylist() == TEXTS
    assert read == ["index.parquet"]


def test_repeats_are_counted_within_each_clip(prepared: PreparedSet) -> None:
    family = CtcFamily()
    processor = family.new_processor(TEXTS, CtcPart(init="scratch", family="ctc"))
    labels = labels_of(prepared, family, processor)
    assert [labels[position] for position in range(len(labels))] == family.encode_labels(processor, TEXTS)
    # three; none of the others, though some begin as the one before ends
    assert labels.repeats.tolist() == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("prepared", ["folder"], indirect=True)
def test_a_flipped_bit_in_the_file_of_labels_is_found(prepared: PreparedSet, processor: Any) -> None:
    labels_of(prepared, WhisperFamily(), processor)
    (path,) = Path(prepared.url).glob("labels-*")
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 7):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"delete {path}: it is made again"):
            labels_of(prepared, WhisperFamily(), processor)
    for wrong in (b"", content[:40], content[:-4], bytes(len(content)), bytes(60) + content[60:-4] + bytes(4)):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match="it is made again"):
            labels_of(prepared, WhisperFamily(), processor)
