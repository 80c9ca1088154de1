from pathlib import Path

import pytest
from pydantic import ValidationError

from trainers.config.locations import expand_home, make_paths_absolute
from trainers.config.parts.data_location import MANIFEST, DataLocation, path_in, with_path
from trainers.config.parts.data_part import DataPart
from trainers.config.schema import TrainConfig


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("my/train.csv", DataLocation(MANIFEST, "my/train.csv")),
        ("s3://bucket/train.csv?x", DataLocation(MANIFEST, "s3://bucket/train.csv?x")),
        ("common_voice:/cv/sr", DataLocation("common_voice", "/cv/sr")),
        ("common_voice:/cv?split=train+other", DataLocation("common_voice", "/cv", {"split": "train+other"})),
        (
            "common_voice:s3://b/sr?split=train%2Bother",
            DataLocation("common_voice", "s3://b/sr", {"split": "train+other"}),
        ),
    ],
)
def test_a_location_is_taken_apart(text: str, expected: DataLocation) -> None:
    assert DataLocation.parse(text) == expected
    assert path_in(text) == expected.path
    assert with_path(text, lambda path: path) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("common_voice:", "must be followed by a path"),
        ("common_voice:/cv?speed=2", "'speed' is not an option of common_voice: it has split"),
        ("common_voice:/cv?split", "write each option once"),
        ("common_voice:hdfs://bucket/cv", "hdfs:// is not supported"),
        ("hdfs://bucket/train.csv", "hdfs:// is not supported"),
    ],
)
def test_what_is_wrong_with_one_is_said_with_the_config(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataPart(train=text, validation="v.csv")


def test_its_path_is_made_absolute_and_its_home_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    given = {"data": {"train": "common_voice:~/cv?split=train", "validation": "common_voice:cv/sr"}}
    content = expand_home(given)
    assert content["data"]["train"] == f"common_voice:{tmp_path}/cv?split=train"
    more = {"model": {"language": "sr", "name_or_path": "openai/whisper-tiny"}, "training": {"max_steps": 1}}
    config = TrainConfig.model_validate({**content, **more})
    assert make_paths_absolute(config, tmp_path).data.validation == f"common_voice:{tmp_path}/cv/sr"
