"""A mix: the rows of its members, each prepared by itself and found again in any other mix."""

import pickle
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from tests.trainers.synthetic import add_languages, speechlike, write_corpus
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import DEFAULT_STORAGE_OPTIONS, StorageOptions
from trainers.data.preparation import prepare, prepared_key, run_in_process
from trainers.data.prepared_set import JoinedSet, PreparedSet
from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.known_sources import open_sources, source_of
from trainers.data.sources.mix_source import MixReader
from trainers.distributed.console.plain_lines import as_lines
from trainers.errors import DataError, NotHereError
from trainers.storage import open_storage


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    for name, size in (("one", 3), ("other", 2)):
        texts = [f"{name} {number}" for number in range(size)]
        write_corpus(tmp_path / name, texts, durations_s=[0.2 + number / 10 for number in range(size)])
        write_corpus(tmp_path / name, texts[:1], durations_s=[0.3], name="validation")
    return tmp_path


def member(corpora: Path, name: str, **changes: Any) -> dict[str, Any]:
    manifests = {split: str(corpora / name / f"{split}.csv") for split in ("train", "validation")}
    return {"name": name, **manifests, **changes}


def mix_of(*members: dict[str, Any], **changes: Any) -> DataPart:
    return DataPart.model_validate({"mix": members, **changes})


def opened(data: DataPart, split: str = "train", options: StorageOptions = DEFAULT_STORAGE_OPTIONS) -> SourceSplit:
    (source,) = open_sources(data, storage_options=options, splits=(split,))
    return source


def prepared(
    data: DataPart, cache: Path | str, options: StorageOptions = DEFAULT_STORAGE_OPTIONS
) -> tuple[PreparedSet, list[str]]:
    lines: list[str] = []
    made = prepare(
        opened(data, options=options),
        data,
        cache_url=str(cache),
        storage_options=options,
        run="test",
        runner=run_in_process,
        log=as_lines(lines.append),
    )
    return made, lines


def test_the_rows_of_all_members_have_their_names(corpora: Path) -> None:
    source = opened(mix_of(member(corpora, "one"), member(corpora, "other", language="Serbian")))
    assert source.table["id"].to_pylist() == [
        *(f"one/train/00{number}.wav" for number in range(3)),
        *(f"other/train/00{number}.wav" for number in range(2)),
    ]
    assert source.table["row"].to_pylist() == [0, 1, 2, 3, 4]
    assert source.table["language"].to_pylist() == [None] * 3 + ["Serbian"] * 2
    assert source.has_file_per_recording
    assert source.origin == "the mix of one, other"


def test_clips_are_read_by_their_position_in_all(corpora: Path) -> None:
    made, _ = prepared(mix_of(member(corpora, "one"), member(corpora, "other")), corpora / "prepared")
    require_clips(made)
    assert isinstance(made, JoinedSet)
    assert made.index["shard"].to_pylist() == [0, 0, 0, 1, 1]
    assert made.member_names == ["one"] * 3 + ["other"] * 2
    assert (made.summary.prepared, made.summary.rows) == (5, 5)
    assert "language" not in made.index.column_names


def require_clips(made: PreparedSet) -> None:
    """Asks for the clips of `one` and `other`, as another process reads them."""
    again = pickle.loads(pickle.dumps(made))
    assert (again.key, again.index["id"].to_pylist()) == (made.key, made.index["id"].to_pylist())
    reader = again.reader(1)
    reader.prefetch(np.array([4, 0]))
    for position, (seed, duration_s) in enumerate([(0, 0.2), (1, 0.3), (2, 0.4), (0, 0.2), (1, 0.3)]):
        assert np.array_equal(reader.read(position), speechlike(duration_s, seed=seed))


@pytest.mark.integration
def test_sets_and_what_is_prepared_of_them_may_be_in_a_bucket(corpora: Path, s3_bucket: str, s3_endpoint: str) -> None:
    options, cache = StorageOptions(s3_endpoint), f"{s3_bucket}/prepared"
    open_storage(s3_bucket, options).upload_folder(corpora, "corpora")
    manifests = {name: f"{s3_bucket}/corpora/{name}/train.csv" for name in ("one", "other")}
    data = mix_of(*({"name": name, "train": url} for name, url in manifests.items()), validation="/valid.csv")
    made, _ = prepared(data, cache, options)
    require_clips(made)
    again, lines = prepared(data, cache, options)
    assert [line.partition(",")[0] for line in lines] == [
        f"prepare train ({name}): already prepared" for name in manifests
    ]
    require_clips(again)


def test_training_clips_of_a_member_without_a_text_are_left_out(corpora: Path) -> None:
    write_corpus(corpora / "one", ["", "one"], durations_s=[0.2, 0.2])
    both = member(corpora, "one"), member(corpora, "other")
    _, lines = prepared(mix_of(*both), corpora / "prepared")
    (line,) = (line for line in lines if "no text" in line)
    assert line.startswith("warning: train (one): 1 of 2 clips have no text and are left out of training")


def test_a_member_is_prepared_once_for_all_mixes_and_for_itself(corpora: Path) -> None:
    cache = corpora / "prepared"
    prepared(mix_of(member(corpora, "one"), member(corpora, "other")), cache)
    _, lines = prepared(
        mix_of(member(corpora, "other", language="Serbian", weight=3), member(corpora, "one", weight=1)), cache
    )
    assert [line.partition(",")[0] for line in lines] == [
        "prepare train (other): already prepared",
        "prepare train (one): already prepared",
    ]
    alone = DataPart(train=str(corpora / "one" / "train.csv"), validation="/valid.csv")
    _, lines = prepared(alone, cache)
    assert lines[0].startswith("prepare train: already prepared")


def test_the_key_follows_members_order_languages_and_content_but_no_weights(corpora: Path) -> None:
    def key(*members: dict[str, Any]) -> str:
        return prepared_key(opened(data := mix_of(*members)), data)

    one, other = member(corpora, "one"), member(corpora, "other")
    keys = {key(one, other), key(other, one), key(one), key(one, {**other, "language": "Serbian"})}
    assert len(keys) == 4
    assert key({**one, "weight": 2}, {**other, "weight": 5}) == key(one, other)
    made, _ = prepared(mix_of(one, other), corpora / "prepared")
    assert made.key == key(one, other)
    write_corpus(corpora / "one", ["new"], durations_s=[0.5])
    assert key(one, other) not in keys


def test_the_language_of_a_member_is_that_of_its_clips_that_name_none(corpora: Path) -> None:
    add_languages(corpora / "one" / "train.csv", ["de", "", ""])
    data = mix_of(member(corpora, "one", language="sr"), member(corpora, "other"))
    assert opened(data).table["language"].to_pylist() == ["de", "sr", "sr", None, None]
    made, _ = prepared(data, corpora / "prepared")
    assert made.index["language"].to_pylist() == ["de", "sr", "sr", None, None]


def test_evaluation_splits_are_the_configs_own_or_those_of_the_members(corpora: Path) -> None:
    one, other = member(corpora, "one"), {**member(corpora, "other"), "validation": None}
    joined = opened(mix_of(one, other), "validation")
    assert joined.table["id"].to_pylist() == ["one/validation/000.wav"]
    own = opened(mix_of(one, other, validation=str(corpora / "other" / "validation.csv")), "validation")
    assert own.table["text"].to_pylist() == ["other 0"] and not own.members
    assert source_of(mix_of(one, other), StorageOptions()).splits == ("train", "validation")


def test_members_of_several_kinds_are_read_each_in_its_way(corpora: Path) -> None:
    paths = [str(corpora / "other" / "train" / f"{number:03d}.wav") for number in range(2)]
    table = datasets.Dataset.from_dict({"audio": paths, "sentence": ["a", "b"]})
    datasets.DatasetDict(train=table, validation=table).save_to_disk(corpora / "saved")
    saved = {
        "name": "saved",
        "dataset": {"name": str(corpora / "saved"), "test_split": None},
        "audio_column_name": "audio",
        "text_column_name": "sentence",
    }
    demo = {"name": "spoken", "demo": {"train_utterances": 2, "validation_utterances": 1, "test_utterances": 1}}
    data = mix_of(member(corpora, "one"), saved, demo)
    source = opened(data)
    assert isinstance(source.reader, MixReader)
    read = list(source.reader.read(source.table.to_pylist()))
    assert read[3:5] == [Path(path).read_bytes() for path in paths]
    made, _ = prepared(data, corpora / "prepared")
    assert made.summary.prepared == 7
    assert made.index["text"].to_pylist()[:5] == ["one 0", "one 1", "one 2", "a", "b"]


def test_what_is_wrong_with_a_member_names_it(corpora: Path) -> None:
    with pytest.raises(NotHereError, match=r"data.mix: gone: data.train: .*/gone/train.csv: no such file"):
        opened(mix_of(member(corpora, "one"), member(corpora, "gone")))
    write_corpus(corpora / "one", ["a", "b"], durations_s=[0.1, 0.1])
    (corpora / "one" / "train" / "000.wav").unlink()
    with pytest.raises(DataError, match=r"one/train.csv: 1 of 2 recordings cannot be decoded"):
        prepared(mix_of(member(corpora, "one"), member(corpora, "other")), corpora / "prepared")


def test_a_rehearsal_has_few_clips_of_each_member(corpora: Path, tmp_path: Path) -> None:
    data = mix_of(member(corpora, "one", weight=2), member(corpora, "other", weight=1))
    folder = tmp_path / "few"
    folder.mkdir()
    few = source_of(data, StorageOptions()).truncated({"train": 1, "validation": 1, "test": 1}, folder)
    assert opened(few).table["id"].to_pylist() == ["one/train/000.wav", "other/train/000.wav"]
    assert [each.weight for each in few.mix] == [2, 1]
