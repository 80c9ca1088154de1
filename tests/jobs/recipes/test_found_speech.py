"""What is found in folders and manifests of all kinds, and what is said of those that cannot be trained on."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile

from jobs.recipes.found_speech import ALL, Columns, FoundSpeech, find_speech, split_of_name
from jobs.recipes.speech_facts import measure
from tests.trainers.data.sources.archives.made_archives import manifest_members, recording, text, write_tar
from tests.trainers.synthetic import RATE_HZ, speechlike, write_corpus, write_recording
from trainers.errors import ConfigError, DataError, RayscribeError

TEXTS = [f"text {number}" for number in range(4)]
DURATIONS_S = [0.5, 1.0, 1.5, 2.0]


def look(source: object, encoding: str = "utf-8", **columns: Any) -> FoundSpeech:
    return find_speech(str(source), Columns(**columns), lambda text: None, encoding)


def texts_of(found: FoundSpeech) -> dict[str, list[str]]:
    return {name: split.source.table["text"].to_pylist() for name, split in found.splits.items()}


def locations_of(found: FoundSpeech) -> dict[str, str | None]:
    return {name: split.location for name, split in found.splits.items()}


def record(folder: Path, names: list[str], *, with_texts: bool = True) -> Path:
    """Writes recordings, and next to each what is said in it."""
    for number, name in enumerate(names):
        path = write_recording(folder / name, speechlike(0.5, seed=number))
        if with_texts:
            path.with_suffix(".txt").write_text(f" text\n{number}\n", encoding="utf-8")
    return folder


class TestManifests:
    @pytest.fixture
    def corpus(self, tmp_path: Path) -> Path:
        return write_corpus(tmp_path / "speech", TEXTS, durations_s=DURATIONS_S, name="all")

    def test_one_is_taken_as_it_is(self, corpus: Path) -> None:
        found = look(corpus)
        assert texts_of(found) == {ALL: TEXTS}
        assert (found.name, locations_of(found)) == ("all", {ALL: str(corpus)})
        assert measure(found, print).durations_s.tolist() == DURATIONS_S

    def test_the_only_one_of_a_folder_is_found(self, corpus: Path) -> None:
        found = look(corpus.parent)
        assert (found.name, found.kind, locations_of(found)) == ("speech", "all.csv", {ALL: str(corpus)})

    @pytest.mark.parametrize(
        ("audio", "text", "speaker"),
        [
            ("audio_filepath", "text", "speaker"),
            ("file_name", "transcription", "speaker_id"),
            ("Path", "Sentence", "client_id"),
            ("File Name", "Transcription", "Speaker-ID"),
        ],
    )
    @pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
    def test_usual_columns_and_separators_are_known(
        self, corpus: Path, audio: str, text: str, speaker: str, separator: str
    ) -> None:
        rows = [(f"all/{n:03d}.wav", f'{TEXTS[n]}, "so"', f"voice {n}") for n in range(4)]
        with corpus.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter=separator).writerows([(audio, text, speaker), *rows])
        found = look(corpus)
        assert texts_of(found) == {ALL: [text for _, text, _ in rows]}
        assert found.splits[ALL].source.table["speaker"].to_pylist() == [voice for *_, voice in rows]
        assert found.splits[ALL].columns == (audio, text)
        # A recipe names no separator.
        assert locations_of(found) == {ALL: str(corpus) if separator == "," else None}

    def test_speakers_of_json_lines_are_known_by_other_names_too(self, corpus: Path) -> None:
        path = corpus.with_suffix(".jsonl")
        rows = [{"audio": f"all/{n:03d}.wav", "sentence": TEXTS[n], "spk_id": n or None} for n in range(4)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        assert look(path).splits[ALL].source.table["speaker"].to_pylist() == [None, "1", "2", "3"]

    def test_columns_of_json_lines_are_those_of_all_lines(self, corpus: Path) -> None:
        path = corpus.with_suffix(".jsonl")
        rows = [{"path": f"clips/{number}.wav", "text": "a", "speaker_id": f"s{number}"} for number in range(3)]
        del rows[0]["speaker_id"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert look(path).splits[ALL].source.table["speaker"].to_pylist() == [None, "s1", "s2"]

    def test_columns_of_other_names_are_asked_for_and_taken(self, corpus: Path) -> None:
        content = corpus.read_text(encoding="utf-8").replace("path,text", "where,what", 1)
        corpus.write_text(content, encoding="utf-8")
        both = r"\(where, what\) which one names the recordings\? .*--audio-column; .*transcripts\? .*--text-column"
        with pytest.raises(ConfigError, match=both):
            look(corpus)
        nothing = "the transcripts, without which there is nothing to train on"
        with pytest.raises(ConfigError, match=rf"which one names the transcripts\? .*--text-column .*text.*{nothing}"):
            look(corpus, audio="where")
        with pytest.raises(ConfigError, match=r"\(where, what\) none is 'path': name it with --audio-column$"):
            look(corpus, audio="path", text="what")
        with pytest.raises(ConfigError, match=r"none is 'who': name it with --speaker-column$"):
            look(corpus, audio="where", text="what", speaker="who")
        assert texts_of(look(corpus, audio="where", text="what")) == {ALL: TEXTS}

    def test_a_column_of_speakers_of_another_name_is_taken(self, corpus: Path) -> None:
        rows = corpus.read_text(encoding="utf-8").splitlines()
        told = [f"{row},{who}" for row, who in zip(rows, ("who", "ana", "ben", "ana", "eva"), strict=True)]
        corpus.write_text("\n".join(told) + "\n", encoding="utf-8")
        assert look(corpus).splits[ALL].source.table["speaker"].null_count == len(TEXTS)
        found = look(corpus, speaker="who")
        assert found.splits[ALL].source.table["speaker"].to_pylist() == ["ana", "ben", "ana", "eva"]

    @pytest.mark.parametrize(("encoding", "said"), [("latin-1", "what it is"), ("utf-16", "utf-16")])
    def test_one_of_another_encoding_is_refused_until_that_is_named(
        self, corpus: Path, encoding: str, said: str
    ) -> None:
        text = corpus.read_text(encoding="utf-8").replace("text 0", "café; crème")
        corpus.write_text(text, encoding=encoding)
        with pytest.raises(DataError, match=rf"is not UTF-8: save it as UTF-8, or set --encoding to {said}$"):
            look(corpus)
        with pytest.raises(DataError, match=r"is not ascii: correct --encoding, or save it as UTF-8"):
            look(corpus, "ascii")
        with pytest.raises(ConfigError, match=r"--encoding latin-9000: not a text encoding of Python: use lat"):
            look(corpus, "latin-9000")
        assert texts_of(look(corpus, encoding)) == {ALL: ["café; crème", *TEXTS[1:]]}

    def test_quotes_in_two_texts_are_refused_until_they_are_named(self, corpus: Path) -> None:
        lines = corpus.read_text(encoding="utf-8").replace("text 1", '"text 1').replace("text 3", 'text 3"')
        corpus.write_text(lines, encoding="utf-8")
        with pytest.raises(DataError, match=r"opens in line 3 closes in line 5, .*set --quoting to none$"):
            look(corpus)
        found = find_speech(str(corpus), Columns(), print, quoting="none")
        assert (texts_of(found), found.quoting) == ({ALL: ["text 0", '"text 1', "text 2", 'text 3"']}, "none")

    @pytest.mark.parametrize("separator", [",", ";", "\t"])
    def test_one_without_a_header_is_told_to_need_one(self, corpus: Path, separator: str) -> None:
        content = corpus.read_text(encoding="utf-8").partition("\n")[2].replace(",", separator)
        corpus.write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=r"its first line \(all/000.wav, text 0.*\) is not a header: add one, e.g"):
            look(corpus)

    def test_those_of_splits_are_told_by_their_names(self, tmp_path: Path) -> None:
        for name in ("my-train", "dev", "test"):
            write_corpus(tmp_path, TEXTS, durations_s=DURATIONS_S, name=name)
        found = look(tmp_path)
        paths = {"train": tmp_path / "my-train.csv", "validation": tmp_path / "dev.csv", "test": tmp_path / "test.csv"}
        assert locations_of(found) == {split: str(path) for split, path in paths.items()}

    def test_several_that_are_no_splits_are_named(self, corpus: Path) -> None:
        shutil.copy(corpus, corpus.parent / "other.csv")
        with pytest.raises(ConfigError, match=r"several manifests \(all.csv, other.csv\): name one, e.g. .*all.csv"):
            look(corpus.parent)

    def test_an_audio_folder_has_its_metadata(self, tmp_path: Path) -> None:
        for split in ("train", "test"):
            folder = record(tmp_path / split, ["a.wav"], with_texts=False)
            (folder / "metadata.csv").write_text(f"file_name,transcription\na.wav,{split}\n", encoding="utf-8")
        assert texts_of(look(tmp_path)) == {"train": ["train"], "test": ["test"]}
        assert texts_of(look(tmp_path / "train")) == {ALL: ["train"]}

    def test_recordings_that_are_not_there_are_left_out_and_none_at_all_is_an_error(self, corpus: Path) -> None:
        (corpus.parent / "all/001.wav").unlink()
        measured = measure(look(corpus), print)
        assert [row["text"] for row in measured.rows[ALL]] == ["text 0", "text 2", "text 3"]
        assert measured.unreadable == ("all/001.wav: no such file",)
        shutil.rmtree(corpus.parent / "all")
        with pytest.raises(DataError, match=r"none of the 4 checked recordings .* no such file.* correct their paths"):
            measure(look(corpus), print)


class TestRecordingsWithTexts:
    def test_each_has_what_is_said_next_to_it(self, tmp_path: Path) -> None:
        found = look(record(tmp_path / "speech", ["a.wav", "b/c.WAV", "b/d.flac"]))
        assert found.name == "speech"
        assert texts_of(found) == {ALL: ["text 0", "text 1", "text 2"]}
        assert [row["folder"] for row in measure(found, print).rows[ALL]] == ["", "/b", "/b"]

    def test_those_without_are_left_out_and_counted(self, tmp_path: Path) -> None:
        record(tmp_path, ["a.wav", "b.wav", "c.wav"])
        (tmp_path / "b.txt").unlink()
        (tmp_path / "c.txt").write_text(" \n", encoding="utf-8")
        (tmp_path / ".hidden.wav").touch()
        found = look(tmp_path)
        assert texts_of(found) == {ALL: ["text 0"]}
        assert found.notes == (
            "left out, recordings without a .txt: 1",
            "left out, recordings with an empty .txt: 1",
        )

    def test_texts_of_another_encoding_are_read_as_it_is_named(self, tmp_path: Path) -> None:
        record(tmp_path, ["a.wav"]).joinpath("a.txt").write_text("kuća", encoding="cp1250")
        assert texts_of(look(tmp_path, "cp1250")) == {ALL: ["kuća"]}

    def test_one_that_is_no_audio_is_left_out(self, tmp_path: Path) -> None:
        record(tmp_path, ["a.wav", "b.wav"])
        (tmp_path / "b.wav").write_text("a note, not a recording")
        measured = measure(look(tmp_path), print)
        assert [row["id"] for row in measured.rows[ALL]] == ["a.wav"]
        [reason] = measured.unreadable
        assert reason.startswith("b.wav: no header of an audio format that libsndfile or FFmpeg knows")

    def test_folders_of_splits_are_told_by_their_names(self, tmp_path: Path) -> None:
        found = look(record(tmp_path, ["train/a.wav", "train/ana/b.wav", "valid/c.wav", "test/d.wav"]))
        assert texts_of(found) == {"train": ["text 0", "text 1"], "validation": ["text 2"], "test": ["text 3"]}

    def test_a_recording_in_none_of_them_makes_all_one(self, tmp_path: Path) -> None:
        assert {*look(record(tmp_path, ["train/a.wav", "test/b.wav", "c.wav"])).splits} == {ALL}

    def test_durations_that_no_header_has_are_decoded(self, tmp_path: Path) -> None:
        soundfile.write(tmp_path / "a.flac", speechlike(0.5), RATE_HZ)
        content = bytearray((tmp_path / "a.flac").read_bytes())
        # The bits that count the samples, which are left out where a recording is streamed.
        content[21] &= 0xF0
        content[22:26] = bytes(4)
        (tmp_path / "a.flac").write_bytes(content)
        (tmp_path / "a.txt").write_text("text", encoding="utf-8")
        assert measure(look(tmp_path), print).durations_s.tolist() == [0.5]


class TestCorpora:
    @pytest.fixture
    def common_voice(self, tmp_path: Path) -> Path:
        folder = tmp_path / "cv-corpus" / "sr"
        for number, table in enumerate(("train", "dev", "test", "validated")):
            clip = f"common_voice_sr_{number}.wav"
            record(folder / "clips", [clip], with_texts=False)
            (folder / f"{table}.tsv").write_text(
                f"client_id\tpath\tsentence\nvoice {number}\t{clip}\t{table}\n", encoding="utf-8"
            )
        return folder

    def test_common_voice_is_named_as_it_is_with_its_language(self, common_voice: Path) -> None:
        for source in (common_voice, common_voice.parent, f"common_voice:{common_voice}"):
            found = look(source)
            assert texts_of(found) == {"train": ["train"], "validation": ["dev"], "test": ["test"]}
            assert {*locations_of(found).values()} == {f"common_voice:{common_voice}"}
            assert (found.name, found.language) == ("sr", "sr")

    def test_without_its_splits_common_voice_has_what_was_validated(self, common_voice: Path) -> None:
        (common_voice / "dev.tsv").unlink()
        found = look(common_voice)
        assert locations_of(found) == {ALL: f"common_voice:{common_voice}?split=validated"}
        assert texts_of(found) == {ALL: ["validated"]}

    def test_of_several_languages_one_is_to_be_named(self, common_voice: Path) -> None:
        shutil.copytree(common_voice, common_voice.parent / "hr")
        with pytest.raises(
            ConfigError, match=r"several languages of Common Voice \(hr, sr\): name one's folder, e\.g\. .*/hr"
        ):
            look(common_voice.parent)

    def test_librispeech_has_speakers_and_its_folders_are_splits(self, tmp_path: Path) -> None:
        for split, speaker in (("train-clean-5", "84"), ("test-clean", "85")):
            chapter = record(tmp_path / split / speaker / "121", [f"{speaker}-121-0000.flac"], with_texts=False)
            (chapter / f"{speaker}-121.trans.txt").write_text(f"{speaker}-121-0000 {split}\n", encoding="utf-8")
        found = look(tmp_path)
        assert texts_of(found) == {"train": ["train-clean-5"], "test": ["test-clean"]}
        assert found.splits["test"].source.table["speaker"].to_pylist() == ["85"]

    def test_kaldi_s_folders_are_splits(self, tmp_path: Path) -> None:
        for split in ("train", "dev"):
            folder = record(tmp_path / split, ["a.wav"], with_texts=False)
            (folder / "wav.scp").write_text("a a.wav\n")
            (folder / "text").write_text(f"a {split}\n")
        assert texts_of(look(tmp_path)) == {"train": ["train"], "validation": ["dev"]}
        assert locations_of(look(tmp_path / "train")) == {ALL: f"kaldi:{tmp_path / 'train'}"}


class TestArchives:
    def test_a_manifest_in_one_is_named_as_it_is(self, tmp_path: Path) -> None:
        archive = write_tar(tmp_path / "sr.tar", manifest_members(4))
        found = look(archive / "train.tsv")
        assert (texts_of(found), locations_of(found)) == (
            {ALL: [text(n) for n in range(4)]},
            {ALL: f"{archive}/train.tsv"},
        )
        assert measure(found, print).durations_s.tolist() == pytest.approx([0.3, 0.35, 0.4, 0.45])

    def test_samples_of_shards_that_are_not_complete_are_left_out(self, tmp_path: Path) -> None:
        members = [("a.flac", recording(0)), ("a.txt", b"one"), ("b.flac", recording(1)), ("c.txt", b"two")]
        found = look(f"webdataset:{write_tar(tmp_path / 'sr.tar', members)}")
        assert texts_of(found) == {ALL: ["one"]}
        assert found.notes == ("left out, samples without one recording and one text: 2",)


def nothing(folder: Path) -> str:
    return str(folder)


def no_transcripts(folder: Path) -> str:
    return str(record(folder, ["a/b.wav", "c.wav"], with_texts=False))


def empty_transcripts(folder: Path) -> str:
    record(folder, ["a.wav"])
    (folder / "a.txt").write_text("\n")
    return str(folder)


def other_encoding(folder: Path) -> str:
    record(folder, ["a.wav"])
    (folder / "a.txt").write_bytes("kuća".encode("cp1250"))
    return str(folder)


def saved(folder: Path) -> str:
    (folder / "dataset_info.json").write_text("{}")
    return str(folder)


def empty_manifest(folder: Path) -> str:
    (folder / "all.csv").touch()
    return str(folder)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (nothing, ConfigError, "no recordings .* and no manifest in it or below: name a folder of recordings"),
        (
            no_transcripts,
            ConfigError,
            r"recordings \(2\), but no transcripts, .* of a/b.wav to a/b.txt .* path,text",
        ),
        (empty_transcripts, ConfigError, "each .txt is empty"),
        (other_encoding, DataError, r"a.txt: byte 2 \(line 1\) is not UTF-8.* --encoding"),
        (saved, ConfigError, "a data set saved by `datasets`: copy a recipe .* data.dataset.name: /"),
        (
            lambda folder: str(record(folder, ["a.wav"]) / "a.wav"),
            ConfigError,
            "its extension is not that of a manifest",
        ),
        (empty_manifest, DataError, "all.csv: it has no rows"),
        (lambda folder: f"{folder}/nowhere", ConfigError, "nowhere: no such file or folder: name a folder of"),
        (lambda folder: "kaldi:", ConfigError, "kaldi: must be followed by a path"),
    ],
)
def test_what_cannot_be_trained_on_is_said_with_what_is_needed(
    make: Callable[[Path], str], kind: type[RayscribeError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        look(make(tmp_path))


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-clean-100", "train"),
        ("my_valid", "validation"),
        ("dev", "validation"),
        ("TEST", "test"),
        ("eval.2", "test"),
        ("training", "train"),
        ("trains", None),
        ("all", None),
        ("contest", None),
    ],
)
def test_a_name_says_its_split_by_a_complete_word(name: str, split: str | None) -> None:
    assert split_of_name(name) == split
