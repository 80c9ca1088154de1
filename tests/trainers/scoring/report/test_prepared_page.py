"""The page of a prepared set: what it shows, and when it is written."""

from pathlib import Path

import pytest

from tests.trainers.scoring.report.parsed_page import Page, check_page
from tests.trainers.synthetic import config, write_corpus
from trainers.config.schema import TrainConfig
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.splits import prepare_all
from trainers.run_folder.layout import REPORT


@pytest.fixture
def wanted(tmp_path: Path) -> TrainConfig:
    """The config of three clips, of which one cannot be decoded."""
    texts = ["one <b>two</b>", "three", "four"]
    manifest = write_corpus(tmp_path / "corpus", texts, durations_s=[1.0, 3.0, 7.5])
    (tmp_path / "corpus" / "train" / "002.wav").write_bytes(b"no recording")
    data = {"train": str(manifest), "validation": "/nowhere.csv", "max_bad_fraction": 0.5}
    return config({"run.name": "x", "run.storage_path": str(tmp_path / "runs"), "data": data})


def page_of(wanted: TrainConfig) -> Path:
    """Where the page of the training set is, once it is prepared."""
    return Path(prepare_all(wanted, LocalEngine(), ("train",))["train"].url) / REPORT


def test_preparing_writes_a_page_with_hours_durations_characters_and_the_quarantine(wanted: TrainConfig) -> None:
    html = page_of(wanted).read_text(encoding="utf-8")
    check_page(html)
    parsed = Page(html)
    assert parsed.texts["h2"] == ["Data"]
    figures = ["4 s", "2", "of 3 rows", "1", "19", "12 different"]
    assert [text for text in parsed.texts["dd"] if "FLAC" not in text] == figures
    assert str(parsed.all("svg")[0]["aria-label"]).startswith("Durations of this set: 2 clips, from 1.00 to 3.00 s")
    assert "Characters of this set" in parsed.texts["summary"] and "U+003C" in parsed.texts["td"]
    reason, rows, first = parsed.texts["td"][-3:]
    assert "no header of an audio format" in reason and (rows, first) == ("1", "train/002.wav")


def test_the_page_is_written_once_and_a_set_without_it_is_as_good(wanted: TrainConfig) -> None:
    page = page_of(wanted)
    page.write_text("kept", encoding="utf-8")
    assert page_of(wanted).read_text(encoding="utf-8") == "kept"
    page.unlink()
    page.mkdir()
    assert page_of(wanted) == page
