import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import soundfile

from tests.trainers.data.preparing import Cache
from tests.trainers.synthetic import RATE_HZ, speechlike, write_recording
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.known_sources import open_sources
from trainers.errors import DataError

TEXTS = ["dobar dan", "čaj i kafa"]


def opened(where: str) -> SourceSplit:
    data = DataPart(train=where, validation="/nowhere.csv")
    (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",))
    return source


def write_kaldi(folder: Path, files: Mapping[str, str]) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def test_a_kaldi_folder_is_prepared_with_its_segments(folder: Cache, tmp_path: Path) -> None:
    write_recording(tmp_path / "data" / "long.wav", speechlike(3.0))
    kaldi = write_kaldi(
        tmp_path / "data" / "train",
        {
            "wav.scp": "rec ../long.wav\n",
            "segments": "u1 rec 0.5 1.5\nu2 rec 1.5 -1\n",
            "text": "".join(f"u{number} {text}\n" for number, text in enumerate(TEXTS, 1)),
            "utt2spk": "u1 ana\nu2 iva\n",
        },
    )
    found = folder.prepare(f"kaldi:{kaldi}")
    assert found.index["id"].to_pylist() == ["u1", "u2"]
    assert found.index["text"].to_pylist() == TEXTS
    assert found.index["duration_s"].to_pylist() == pytest.approx([1.0, 1.5])
    assert opened(f"kaldi:{kaldi}").table["speaker"].to_pylist() == ["ana", "iva"]
    assert opened(f"kaldi:{kaldi}").fingerprint == opened(f"kaldi:{kaldi}/").fingerprint


def test_a_speechbrain_manifest_is_prepared_from_where_its_data_root_is(folder: Cache, tmp_path: Path) -> None:
    rows = {}
    for number, text in enumerate(TEXTS):
        wave = speechlike(0.5 + number, seed=number)
        write_recording(tmp_path / "corpus" / f"{number}.wav", wave)
        rows[f"u{number}"] = {"wav": f"{{data_root}}/{number}.wav", "length": len(wave) / RATE_HZ, "words": text}
    manifest = tmp_path / "train.json"
    manifest.write_text(json.dumps(rows), encoding="utf-8")
    found = folder.prepare(f"speechbrain:{manifest}?data_root={tmp_path}/corpus")
    assert found.index["text"].to_pylist() == TEXTS
    assert found.index["duration_s"].to_pylist() == [0.5, 1.5]
    (tmp_path / "moved").symlink_to(tmp_path / "corpus")
    roots = ("corpus", "moved")
    keys = {opened(f"speechbrain:{manifest}?data_root={tmp_path}/{root}").fingerprint for root in roots}
    assert len(keys) == 1
    assert soundfile.info(opened(f"speechbrain:{manifest}?data_root={tmp_path}/corpus").node_files[0]).frames == 8000


def test_a_recording_at_a_url_that_none_opens_is_refused_in_every_format(tmp_path: Path) -> None:
    kaldi = write_kaldi(tmp_path / "train", {"wav.scp": "u1 hdfs://bucket/a.wav\n", "text": "u1 one\n"})
    with pytest.raises(DataError, match=r"data\.train: .*hdfs://bucket/a\.wav: hdfs:// is not supported"):
        opened(f"kaldi:{kaldi}")


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.train: .*none\.json: no such file"):
        opened(f"speechbrain:{tmp_path}/none.json")
    with pytest.raises(DataError, match=r"data\.train: .*wav\.scp"):
        opened(f"kaldi:{tmp_path}/none")
