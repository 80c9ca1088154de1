"""Where the relative paths of a recipe count from."""

from pathlib import Path
from typing import Any

import pytest

from trainers.config.locations import anchored, anchored_override, as_written_to
from trainers.config.overrides import apply_overrides, parse_override, value_at

PATHS = {
    "data.train": ("train.csv", "{base}/train.csv", "speech/train.csv"),
    "data.test": ("common_voice:cv?split=dev", "common_voice:{base}/cv?split=dev", "common_voice:speech/cv?split=dev"),
    "data.validation": ("../up.csv", "{root}/up.csv", "up.csv"),
    "decode.lm": ("../../lm.arpa", "{top}/lm.arpa", "{top}/lm.arpa"),
    "data.cache_dir": ("cache", "{base}/cache", "{base}/cache"),
    "run.storage_path": ("runs", "{base}/runs", "{base}/runs"),
    "strategy.ds_config": ("zero.json", "{base}/zero.json", "{base}/zero.json"),
    "job.runtime_env.pip": ("requirements.txt", "{base}/requirements.txt", "{base}/requirements.txt"),
    "job.runtime_env.working_dir": (".", "{base}", "{base}"),
    "model.name_or_path": ("weights", "{base}/weights", "speech/weights"),
    "data.dataset.name": ("corpus", "{base}/corpus", "speech/corpus"),
}
KEPT = {
    "data.train": ("/data/train.csv", "s3://bucket/train.csv", "~/train.csv", "${SPEECH}/train.csv", "hdfs://x", None),
    "data.dataset.name": ("google/fleurs",),
    "model.name_or_path": ("openai/whisper-tiny", "run:sr"),
    "job.runtime_env.pip": (["jiwer"],),
    "training.max_steps": (3, "many"),
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The folder of a recipe, with weights and a data set, in another folder, `root`."""
    folder = tmp_path / "root" / "speech"
    for name in ("weights", "corpus"):
        (folder / name).mkdir(parents=True)
    return folder


def content_of(name: str, value: Any) -> dict[str, Any]:
    return apply_overrides({}, [(tuple(name.split(".")), value)])


@pytest.mark.parametrize("name", PATHS)
def test_a_relative_path_is_absolute_or_counts_from_the_folder_that_travels(name: str, base: Path) -> None:
    folders = {"base": base, "root": base.parent, "top": base.parent.parent}
    written, absolute, inside = (text.format(**folders) for text in PATHS[name])
    keys = name.split(".")
    assert value_at(anchored(content_of(name, written), base), keys) == absolute
    assert value_at(anchored(content_of(name, written), base, base.parent), keys) == inside


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in KEPT.items() for value in values])
def test_what_means_the_same_from_everywhere_stays(name: str, value: Any, base: Path) -> None:
    assert anchored(content_of(name, value), base, base) == content_of(name, value)


def test_storage_stays_where_it_is_asked_to(base: Path) -> None:
    content = {"run": {"storage_path": "runs"}, "data": {"train": "a.csv", "mix": [{"name": "x", "train": "b.csv"}, 1]}}
    assert anchored(content, base, base.parent, storage=False) == {
        "run": {"storage_path": "runs"},
        "data": {"train": "speech/a.csv", "mix": [{"name": "x", "train": "speech/b.csv"}, 1]},
    }


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("data.train=a.csv", "{base}/a.csv"),
        ("data={{train: a.csv}}", "{{'train': '{base}/a.csv'}}"),
        ("training.max_steps=3", "3"),
        ("run=mine", "mine"),
    ],
)
def test_what_is_set_counts_from_the_current_folder(written: str, value: str, base: Path) -> None:
    override = parse_override(written.format())
    path, found = anchored_override(override, base)
    assert (path, str(found)) == (override[0], value.format(base=base))


def test_a_recipe_that_is_written_elsewhere_names_the_same_files(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"run": {"storage_path": "runs"}, "data": {"train": "speech/a.csv", "validation": "b.csv"}}
    monkeypatch.chdir(base.parent)
    assert as_written_to(Path("my.yaml"), content) == content
    written = as_written_to(Path("speech/my.yaml"), content)
    assert written["data"] == {"train": "a.csv", "validation": f"{base.parent}/b.csv"}
    assert anchored(written, base) == anchored(content, base.parent)
