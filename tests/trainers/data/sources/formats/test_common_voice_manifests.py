import io
import json
import tarfile
from pathlib import Path

import pytest

from jobs.cli.app import main
from tests.trainers.data.preparing import Cache
from tests.trainers.data.sources.formats.common_voice_corpus import write_archive, write_corpus


def made(*arguments: object) -> int:
    return main(["data", "common-voice", *map(str, arguments)])


def rows_of(manifest: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "cv" / "sr")


def test_manifests_of_a_folder_are_prepared(
    corpus: Path, folder: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made(corpus, "--out", tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "train: 3 clips" in said
    assert "train: 1 clip without a sentence, left out" in said
    assert "train and validation have 1 sentences in common" in said
    first, *_ = rows_of(tmp_path / "out" / "train.jsonl")
    assert first == {
        "gender": "female_feminine",
        "id": "common_voice_sr_0",
        "path": f"{corpus.resolve()}/clips/common_voice_sr_0.mp3",
        "text": 'Rekao je: "Dobar dan',
        "speaker": "ana",
        "duration": 0.6,
    }
    assert folder.prepare(tmp_path / "out" / "train.jsonl").summary.prepared == 3


def test_an_archive_gives_the_same_rows_with_its_clips(corpus: Path, folder: Cache, tmp_path: Path) -> None:
    assert made(corpus, "--out", tmp_path / "one") == 0
    assert made(write_archive(corpus, tmp_path / "cv.tar.gz"), "--out", tmp_path / "two") == 0
    for split in ("train", "validation", "test"):
        one, two = (rows_of(tmp_path / name / f"{split}.jsonl") for name in ("one", "two"))
        assert [{**row, "path": Path(str(row["path"])).name} for row in one] == [
            {**row, "path": Path(str(row["path"])).name} for row in two
        ]
    # The clip without a sentence is not unpacked.
    assert len(list((tmp_path / "two" / "clips").iterdir())) == 7
    assert folder.prepare(tmp_path / "two" / "train.jsonl").summary.prepared == 3


def test_speakers_of_a_later_split_are_left_out_where_asked(corpus: Path, tmp_path: Path) -> None:
    assert made(corpus, "--out", tmp_path, "--disjoint-speakers", "--train", "train+other") == 0
    speakers = {
        split: {row["speaker"] for row in rows_of(tmp_path / f"{split}.jsonl")}
        for split in ("train", "validation", "test")
    }
    assert speakers == {"train": {"ana"}, "validation": {"ivo"}, "test": {"mia", "zoe"}}


def test_long_sentences_and_accents_go_where_asked(corpus: Path, tmp_path: Path) -> None:
    assert made(corpus, "--out", tmp_path, "--max-characters", 12, "--no-accented-letters") == 0
    assert [row["text"] for row in rows_of(tmp_path / "train.jsonl")] == ["caj i kafa", "Đak uci."]


def test_of_several_languages_one_is_chosen(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(corpus.parent / "hr")
    assert made(corpus.parent, "--out", tmp_path / "out") == 3
    assert "has the languages hr, sr: choose one with --language" in capsys.readouterr().err
    assert made(corpus.parent, "--out", tmp_path / "out", "--language", "sr") == 0
    assert made(corpus.parent, "--out", tmp_path / "out", "--language", "xx") == 3
    assert "no language 'xx' among hr, sr" in capsys.readouterr().err


def with_member(archive: Path, corpus: Path, name: str, kind: bytes = tarfile.REGTYPE) -> Path:
    write_archive(corpus, archive)
    member = tarfile.TarInfo(name)
    member.type, member.linkname, content = kind, "/etc/passwd", b"evil"
    member.size = len(content) if kind == tarfile.REGTYPE else 0
    with tarfile.open(archive) as old:
        members = [(each, old.extractfile(each).read() if each.isreg() else b"") for each in old.getmembers()]  # type: ignore[union-attr]
    with tarfile.open(archive, "w:gz") as file:
        file.addfile(member, io.BytesIO(content[: member.size]))
        for each, data in members:
            file.addfile(each, io.BytesIO(data))
    return archive


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../outside.mp3", tarfile.REGTYPE),
        ("/tmp/absolute.mp3", tarfile.REGTYPE),
        ("cv-corpus-1.0/sr/clips/../../../up.mp3", tarfile.REGTYPE),
        ("cv-corpus-1.0/sr/clips/common_voice_sr_0.mp3", tarfile.SYMTYPE),
        ("cv-corpus-1.0/sr/clips/common_voice_sr_0.mp3", tarfile.LNKTYPE),
    ],
)
def test_nothing_of_an_archive_lands_outside_of_the_clips(corpus: Path, tmp_path: Path, name: str, kind: bytes) -> None:
    out = tmp_path / "a" / "b" / "out"
    # A clip of which there is a link, too, is not taken: it is not known which one is meant.
    is_link = kind != tarfile.REGTYPE
    assert made(with_member(tmp_path / "cv.tar.gz", corpus, name, kind), "--out", out) == (3 if is_link else 0)
    files = {path for path in (tmp_path / "a").rglob("*") if not path.is_dir()}
    assert all(path.parent == out / "clips" for path in files if path.suffix == ".mp3")
    assert not any(path.is_symlink() for path in files)
    if is_link:
        assert not files
    else:
        clip = "clips/common_voice_sr_0.mp3"
        assert (out / clip).read_bytes() == (corpus / clip).read_bytes()


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_an_archive_that_was_cut_short_makes_no_manifest(
    corpus: Path, tmp_path: Path, keep: float, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = write_archive(corpus, tmp_path / "cv.tar.gz")
    content = archive.read_bytes()
    archive.write_bytes(content[: int(keep * len(content))])
    assert made(archive, "--out", tmp_path / "out") == 3
    assert "damaged or cut short" in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*.jsonl"))


def test_a_clip_that_the_archive_has_not_is_named(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus / "clips" / "common_voice_sr_0.mp3").unlink()
    assert made(write_archive(corpus, tmp_path / "cv.tar.gz"), "--out", tmp_path / "out") == 3
    assert (
        "1 of 7 clips that its tables name cannot be unpacked (common_voice_sr_0.mp3: no such member"
        in capsys.readouterr().err
    )


def test_what_is_no_corpus_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert made(tmp_path, "--out", tmp_path / "out") == 3
    assert made(tmp_path / "nothing", "--out", tmp_path / "out") == 3
    assert "no such folder" in capsys.readouterr().err
    write_corpus(tmp_path / "sr")
    assert made(tmp_path / "sr", "--out", tmp_path / "out", "--train", "train+dev") == 2
    assert "dev also chooses or scores the model" in capsys.readouterr().err
