from pathlib import Path

import pytest
from datasets import Dataset

from tests.trainers.synthetic import config, write_rows
from trainers.config.storage_location import StorageOptions
from trainers.data.sources import fingerprint_of, open_sources
from trainers.errors import DataError


def test_the_fingerprint_of_a_data_set_follows_its_content() -> None:
    one, same, other = (Dataset.from_dict({"text": [text]}) for text in ("a", "a", "b"))
    assert fingerprint_of(one) == fingerprint_of(same) != fingerprint_of(other)


def test_recordings_where_no_storage_reaches_are_refused_and_not_counted_as_missing(tmp_path: Path) -> None:
    manifest = write_rows(tmp_path / "train.csv", [("a.wav", "a"), ("gs://bucket/b.wav", "b")])
    data = config({"data.train": str(manifest)}).data
    with pytest.raises(DataError, match=r"train\.csv: recording gs://bucket/b\.wav: gs:// is not supported"):
        open_sources(data, storage_options=StorageOptions(), splits=("train",))
