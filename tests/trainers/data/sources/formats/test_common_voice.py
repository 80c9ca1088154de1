from pathlib import Path

import pytest

from tests.trainers.data.preparing import Cache
from tests.trainers.data.sources.formats.common_voice_corpus import SENTENCES, write_corpus
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.formats.common_voice import cleaned
from trainers.data.sources.known_sources import open_sources
from trainers.errors import ConfigError, DataError


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "sr")


def opened(where: str, split: str = "train") -> SourceSplit:
    data = DataPart(train=where, validation="/nowhere.csv").model_copy(update={split: where})
    (source,) = open_sources(data, storage_options=StorageOptions(), splits=(split,))
    return source


def test_a_folder_is_prepared_to_every_clip_of_its_tables(folder: Cache, corpus: Path) -> None:
    found = folder.prepare(f"common_voice:{corpus}?split=train+other")
    assert (found.summary.rows, found.summary.prepared) == (5, 5)
    assert found.index["text"].to_pylist() == [
        'Rekao je: "Dobar dan',
        "čaj i kafa",
        "Đak uči.",
        "Još jednom.",
        "Nikad.",
    ]
    # MP3 has silence around what was encoded.
    assert found.index["duration_s"].to_pylist() == pytest.approx([0.6, 0.7, 0.9, 1.3, 1.4], abs=0.15)


def test_rows_have_speakers_and_durations_and_the_split_of_the_field_by_default(corpus: Path) -> None:
    rows = opened(f"common_voice:{corpus}", "validation").table.to_pylist()
    assert [(row["speaker"], row["text"], row["duration_s"]) for row in rows] == [
        ("ivo", "Dobro jutro.", 1.0),
        ("mia", "Đak uči.", 1.1),
    ]
    assert all(Path(row["audio"]).is_file() for row in rows)


def test_what_is_left_out_is_told(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened(f"common_voice:{corpus}?split=train+train")
    said = capsys.readouterr().out
    assert "2 clips without a sentence, left out" in said
    assert "3 clips in several of the tables, taken once" in said


def test_accents_of_latin_letters_go_where_they_are_not_kept(corpus: Path) -> None:
    texts = opened(f"common_voice:{corpus}?split=train&accented_letters=false").table["text"].to_pylist()
    assert texts == ['Rekao je: "Dobar dan', "caj i kafa", "Đak uci."]
    assert cleaned("Чай й", accented_letters=False) == "Чай й"
    assert cleaned("हिन्दी", accented_letters=False) == "हिन्दी"


def test_the_fingerprint_follows_tables_clips_and_options(corpus: Path) -> None:
    where = f"common_voice:{corpus}?split=train"
    first = opened(where).fingerprint
    assert opened(where).fingerprint == first != opened(f"{where}&accented_letters=false").fingerprint
    (corpus / "train.tsv").write_text((corpus / "train.tsv").read_text().replace("Đak", "Djak"))
    assert opened(where).fingerprint != first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "train.tsv").unlink(), r"train\.tsv: no such table"),
        (lambda folder: (folder / "train.tsv").write_text("a\tb\n1\t2\n"), "no column 'path' among a, b"),
        (lambda folder: (folder / "train.tsv").write_text("path\tsentence\nx.mp3\n"), "line 2 has 1 fields"),
        (lambda folder: (folder / "train.tsv").write_bytes(b"path\tsentence\nx\t\xff\n"), r"\(line 2\) is not UTF-8"),
        (lambda folder: (folder / "train.tsv").write_text("path\tsentence\n../x\ty\n"), r"the clip '\.\./x'"),
        (lambda folder: (folder / "train.tsv").write_text("path\tsentence\n"), "no rows are left"),
        (lambda folder: (folder / "clip_durations.tsv").write_text("clip\tduration[ms]\na\tb\n"), "milliseconds"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(corpus: Path, change: object, message: str) -> None:
    assert callable(change)
    change(corpus)
    with pytest.raises(DataError, match=message):
        opened(f"common_voice:{corpus}")


def test_an_option_with_another_value_is_refused(corpus: Path) -> None:
    with pytest.raises(ConfigError, match="accented_letters is 'no': give true or false"):
        opened(f"common_voice:{corpus}?accented_letters=no")


def test_the_corpus_has_what_the_tests_count() -> None:
    assert {table: len(rows) for table, rows in SENTENCES.items()} == {"train": 4, "dev": 2, "test": 2, "other": 2}
