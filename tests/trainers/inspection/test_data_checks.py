import csv
import json
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.folder_server import web_server
from tests.trainers.inspection.checking import levels, said, sound_corpus, subject_of, the_one
from tests.trainers.synthetic import config, speechlike, write_recording, write_rows
from trainers.findings import Check
from trainers.inspection.data_checks import (
    CHECKS,
    check_durations,
    check_leakage,
    check_manifests,
    check_normalizer,
    check_recordings,
    check_transcripts,
)
from trainers.inspection.subject import Subject


def write_long_rows(path: Path, rows: list[tuple[str, str, float]]) -> str:
    """A manifest that says durations; its recordings need not be there."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "text", "duration"), *rows])
    return str(path)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_sound_corpus_is_found_sound(check: Check[Subject], tmp_path: Path) -> None:
    assert levels(check, subject_of(tmp_path)) == {"ok"}


def test_a_normalizer_that_hides_marks_of_what_is_scored(tmp_path: Path) -> None:
    changes = sound_corpus(tmp_path)
    path = tmp_path / "hi.csv"
    write_rows(path, [("test/000.wav", "यह किताब अच्छी है")])
    hindi = {**changes, "data.test": str(path), "model.language": "Hindi"}
    text = the_one(check_normalizer, Subject(config({**hindi, "data.normalizer": "whisper_basic"})), "warning")
    assert text.startswith("test: the normalizer whisper_basic removes marks from 3 of 4 words of the references")
    assert levels(check_normalizer, Subject(config(hindi))) == {"ok"}


class TestManifests:
    def test_a_missing_one_is_an_error_with_the_field_to_set(self, tmp_path: Path) -> None:
        text = the_one(check_manifests, subject_of(tmp_path, {"data.test": "/nowhere/test.csv"}), "error")
        assert text == (
            "data.test: /nowhere/test.csv: no such file; give the path of a manifest (--set data.test=my/test.csv)"
        )

    def test_one_that_only_the_nodes_have_is_skipped(self, tmp_path: Path) -> None:
        subject = subject_of(tmp_path, {"data.test": "/nowhere/test.csv"}, elsewhere=True)
        assert "/nowhere/test.csv: no such file" in the_one(check_manifests, subject, "skipped")

    def test_packed_segments_are_counted(self, tmp_path: Path) -> None:
        path = tmp_path / "talks.csv"
        write_recording(tmp_path / "talk.wav", speechlike(2.0))
        path.write_text("path,text,offset,duration\ntalk.wav,one,0,1\ntalk.wav,two,1,1\n")
        changes = {"data.train": str(path), "data.pack_segments_s": 2}
        found = said(check_manifests, subject_of(tmp_path, changes))
        assert ("ok", "train: 2 segments joined into 1 clip") in found
        path.write_text("path,text\ntalk.wav,one two\n")
        text = the_one(check_manifests, subject_of(tmp_path, changes), "warning")
        assert text.startswith("data.pack_segments_s: no row of ") and "is a segment" in text

    def test_ids_that_come_twice(self, tmp_path: Path) -> None:
        changes = sound_corpus(tmp_path)
        path = tmp_path / "twice.jsonl"
        rows = [{"id": "a", "path": "train/000.wav", "text": "x"}, {"id": "a", "path": "train/001.wav", "text": "y"}]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        text = the_one(check_manifests, Subject(config({**changes, "data.train": str(path)})), "error")
        assert "1 ids occur more than once ('a'): make them unique" in text

    def test_a_column_that_is_not_read_because_of_its_case(self, tmp_path: Path) -> None:
        changes = sound_corpus(tmp_path)
        path = tmp_path / "case.jsonl"
        path.write_text(json.dumps({"path": "train/000.wav", "text": "x", "Speaker": "ana"}) + "\n")
        subject = Subject(config({**changes, "data.train": str(path)}))
        text = the_one(check_manifests, subject, "warning")
        assert text == f"data.train: {path}: the column 'Speaker' is not read: rename it to 'speaker'"

    def test_every_bad_manifest_is_told_of_at_once(self, tmp_path: Path) -> None:
        other = write_rows(tmp_path / "other.csv", [("a.wav", "a")], header=("path", "sentence"))
        subject = subject_of(tmp_path, {"data.train": str(other), "data.validation": "/nowhere.csv"})
        errors = [text for level, text in said(check_manifests, subject) if level == "error"]
        assert len(errors) == 2
        assert "set data.text_column_name to 'sentence'" in errors[0]

    def test_a_bucket_that_is_not_there(self, tmp_path: Path, s3_bucket: str, s3_endpoint: str) -> None:
        changes = {"data.train": f"{s3_bucket}-other/train.csv", "run.s3_endpoint_url": s3_endpoint}
        for elsewhere in (False, True):
            text = the_one(check_manifests, subject_of(tmp_path, changes, elsewhere=elsewhere), "error")
            name = f"{s3_bucket}-other"
            assert f"data.train: cannot read {name}/train.csv: the bucket {name.removeprefix('s3://')!r}" in text
            assert "does not exist; create it or correct the storage path" in text

    def test_the_demo_has_none(self, tmp_path: Path) -> None:
        demo: dict[str, Any] = {"data.train": None, "data.validation": None, "data.test": None, "data.demo": {}}
        assert "synthesized where the job runs" in the_one(check_manifests, subject_of(tmp_path, demo), "skipped")
        for check in CHECKS:
            # Noise has manifests of its own.
            expected = "ok" if check.name == "augmentation" else "skipped"
            assert levels(check, subject_of(tmp_path, demo)) == {expected}

    def test_a_data_set_on_the_hub_is_not_fetched_to_be_looked_at(self, tmp_path: Path) -> None:
        hub = {"data.train": None, "data.validation": None, "data.test": None, "data.dataset": {"name": "nobody/set"}}
        text = the_one(check_manifests, subject_of(tmp_path, hub), "skipped")
        assert text == "data.dataset.name: nobody/set is not a folder here; it is opened where the job runs"


class TestTranscripts:
    def test_empty_ones_are_counted_and_named(self, tmp_path: Path) -> None:
        changes = sound_corpus(tmp_path)
        path = write_rows(
            tmp_path / "gaps.csv", [("train/000.wav", " "), ("train/001.wav", "a"), ("train/002.wav", "")]
        )
        text = the_one(check_transcripts, Subject(config({**changes, "data.train": str(path)})), "warning")
        assert text.startswith(
            "train: 2 of 3 transcripts are empty (train/000.wav, train/002.wav): they will be left out"
        )

    def test_ones_that_are_only_punctuation_are_empty_once_it_is_removed(self, tmp_path: Path) -> None:
        changes = sound_corpus(tmp_path)
        path = write_rows(tmp_path / "dots.csv", [("test/000.wav", "…"), ("test/001.wav", "a")])
        subject = Subject(config({**changes, "data.test": str(path), "data.do_remove_punctuation": True}))
        assert "test: 1 of 2 transcripts are empty (test/000.wav): each recognized word" in the_one(
            check_transcripts, subject, "warning"
        )

    def test_all_empty_is_an_error(self, tmp_path: Path) -> None:
        path = write_rows(tmp_path / "silent.csv", [("test/000.wav", ""), ("test/001.wav", " ")])
        text = the_one(check_transcripts, subject_of(tmp_path, {"data.test": str(path)}), "error")
        assert text == "test: 2 of 2 transcripts are empty; check data.text_column_name 'text'"


class TestDurations:
    def test_long_clips_that_training_would_leave_out(self, tmp_path: Path) -> None:
        rows = [("a.wav", "a", 31.0), ("b.wav", "b", 45.5), ("c.wav", "c", 2.0), ("d.wav", "d", 0.01)]
        path = write_long_rows(tmp_path / "long.csv", rows)
        changes = {"data.train": path, "model.max_context_s": 30}
        text = the_one(check_durations, subject_of(tmp_path, changes), "warning")
        assert text.startswith(
            "train: 2 of 4 clips are longer than data.max_duration_s 30 s (b.wav: 45.5 s, a.wav: 31.0 s), "
            "and 1 of 4 clips are shorter than data.min_duration_s 0.1 s"
        )

    def test_the_model_s_own_bound(self, tmp_path: Path) -> None:
        path = write_long_rows(tmp_path / "long.csv", [("a.wav", "a", 4.0), ("c.wav", "c", 2.0)])
        text = the_one(check_durations, subject_of(tmp_path, {"data.train": path}), "warning")
        assert "1 of 2 clips are longer than the model's longest input, 3 s (a.wav: 4.0 s)" in text

    def test_nothing_left_is_an_error(self, tmp_path: Path) -> None:
        path = write_long_rows(tmp_path / "long.csv", [("a.wav", "a", 31.0), ("b.wav", "b", 0.01)])
        assert "nothing is left to train on" in the_one(
            check_durations, subject_of(tmp_path, {"data.train": path}), "error"
        )

    def test_a_clip_that_cannot_be_scored_whole_is_found_by_its_header(self, tmp_path: Path) -> None:
        write_recording(tmp_path / "long.wav", speechlike(3.2))
        path = write_rows(tmp_path / "long.csv", [("long.wav", "a")])
        text = the_one(check_durations, subject_of(tmp_path, {"data.test": str(path)}), "error")
        assert "test: 1 clip is longer than the model's 3 s: long.wav (3.2 s)" in text
        assert "the longest: long.wav: 3.2 s" in text

    def test_a_model_that_cannot_be_opened_takes_no_known_length(self, tmp_path: Path) -> None:
        changes = {"model": {"init": "pretrained", "name_or_path": "/nowhere/model", "language": "English"}}
        assert "test: the model could not be opened, so its longest input is not known" in [
            text for level, text in said(check_durations, subject_of(tmp_path, changes)) if level == "skipped"
        ]

    def test_what_nobody_says_is_not_guessed(self, tmp_path: Path) -> None:
        (tmp_path / "odd.bin").write_bytes(b"no header that anybody knows")
        path = write_rows(tmp_path / "odd.csv", [("odd.bin", "a")])
        text = the_one(check_durations, subject_of(tmp_path, {"data.test": str(path)}), "skipped")
        assert text == "test: neither the manifest nor a header has a duration"


class TestRecordings:
    def test_a_few_missing_ones_are_a_warning(self, tmp_path: Path) -> None:
        rows = [("train/000.wav", "a")] * 30 + [("gone.wav", "b")]
        path = write_rows(tmp_path / "some.csv", rows)
        text = the_one(check_recordings, subject_of(tmp_path, {"data.train": str(path)}), "warning")
        assert text.startswith("train: 1 of 31 recordings cannot be read: 1 × no such file (gone.wav)")

    def test_more_than_the_config_allows_are_an_error(self, tmp_path: Path) -> None:
        path = write_rows(tmp_path / "some.csv", [("train/000.wav", "a"), ("gone.wav", "b"), (".", "c")])
        text = the_one(check_recordings, subject_of(tmp_path, {"data.train": str(path)}), "error")
        assert "2 of 3 recordings cannot be read" in text
        assert "1 × no such file" in text
        assert "1 × is a directory" in text
        assert "raise data.max_bad_fraction 0.05" in text

    def test_all_of_them_on_the_nodes_only_are_skipped(self, tmp_path: Path) -> None:
        path = write_rows(tmp_path / "far.csv", [("/mnt/nowhere/a.wav", "a")])
        subject = subject_of(tmp_path, {"data.train": str(path)}, elsewhere=True)
        assert "1 of 1 recordings cannot be read" in the_one(check_recordings, subject, "skipped")

    @pytest.mark.integration
    def test_in_a_bucket_a_few_are_fetched(self, tmp_path: Path, s3_bucket: str, s3_endpoint: str) -> None:
        sound_corpus(tmp_path)
        client = boto3.session.Session().client("s3", endpoint_url=s3_endpoint)
        bucket = s3_bucket.removeprefix("s3://")
        wav = (tmp_path / "train" / "000.wav").read_bytes()
        for row in range(20):
            client.put_object(Bucket=bucket, Key=f"speech/{row}.wav", Body=wav)
        path = write_rows(tmp_path / "remote.csv", [(f"{s3_bucket}/speech/{row}.wav", "a") for row in range(20)])
        subject = subject_of(tmp_path, {"data.train": str(path), "run.s3_endpoint_url": s3_endpoint})
        assert ("ok", "train: 8 recordings looked up (of 20) exist") in said(check_recordings, subject)
        assert ("ok", "train: 8 clips whose duration is known (of 20) are between 0.1 and 3 s") in said(
            check_durations, subject
        )
        for row in range(20):
            client.delete_object(Bucket=bucket, Key=f"speech/{row}.wav")
        gone = subject_of(tmp_path, {"data.train": str(path), "run.s3_endpoint_url": s3_endpoint})
        assert "8 of 8 recordings looked up (of 20) cannot be read" in the_one(check_recordings, gone, "error")

    def test_those_of_a_web_server_are_fetched(self, tmp_path: Path) -> None:
        changes = sound_corpus(tmp_path)
        with web_server(tmp_path) as url:
            path = write_rows(tmp_path / "web.csv", [(f"{url}/train/000.wav", "a"), (f"{url}/gone.wav", "b")])
            text = the_one(check_recordings, Subject(config({**changes, "data.train": str(path)})), "error")
        assert "1 of 2 recordings cannot be read: 1 × no such file" in text

    def test_without_time_a_part_is_looked_at_and_said_to_be_a_part(self, tmp_path: Path) -> None:
        rows = [("train/000.wav", "a")] * 600
        path = write_rows(tmp_path / "many.csv", rows)
        subject = subject_of(tmp_path, {"data.train": str(path)}, recordings_s=0.0)
        assert ("ok", "train: 256 recordings looked up (of 600) exist") in said(check_recordings, subject)


class TestLeakage:
    def test_transcripts_that_are_trained_on_are_a_warning_with_their_share(self, tmp_path: Path) -> None:
        rows = [("test/000.wav", "One two three."), ("test/001.wav", "seventeen")]
        changes = sound_corpus(tmp_path)
        path = write_rows(tmp_path / "leak.csv", rows)
        text = the_one(check_leakage, Subject(config({**changes, "data.test": str(path)})), "warning")
        assert text.startswith("test: 1 of 2 transcripts (50.0%) are also trained on (test/000.wav)")

    def test_a_recording_in_two_splits_is_an_error(self, tmp_path: Path) -> None:
        changes = sound_corpus(tmp_path)
        path = write_rows(tmp_path / "leak.csv", [("train/000.wav", "another"), ("test/001.wav", "seventeen")])
        text = the_one(check_leakage, Subject(config({**changes, "data.test": str(path)})), "error")
        assert text.startswith("1 recording is in both data.train and data.test")
        assert str(tmp_path / "train" / "000.wav") in text

    def test_segments_of_one_recording_in_two_splits_are_an_error_where_they_overlap(self, tmp_path: Path) -> None:
        changes = sound_corpus(tmp_path)
        for split, offset_s in (("train", 1), ("test", 2)):
            changes[f"data.{split}"] = str(tmp_path / f"{split}.csv")
            (tmp_path / f"{split}.csv").write_text(
                f"path,text,offset,duration\ntrain/000.wav,{split},{offset_s},1\ntrain/000.wav,more,{offset_s + 4},1\n"
            )
        assert not [text for _, text in said(check_leakage, Subject(config(changes))) if "recordings are in" in text]
        (tmp_path / "test.csv").write_text("path,text,offset,duration\ntrain/000.wav,x,0.5,1\n")
        text = the_one(check_leakage, Subject(config(changes)), "error")
        assert text.startswith("1 recording is in both data.train and data.test")

    def test_without_the_training_split_nothing_is_claimed(self, tmp_path: Path) -> None:
        subject = subject_of(tmp_path, {"data.train": "/nowhere.csv"}, elsewhere=True)
        assert "data.train could not be opened" in the_one(check_leakage, subject, "skipped")


def test_a_folder_of_parquet_files_is_looked_into(tmp_path: Path) -> None:
    sound_corpus(tmp_path)
    folder = tmp_path / "set"
    folder.mkdir()
    audio = pa.StructArray.from_arrays(
        [pa.array([(tmp_path / "train" / "000.wav").read_bytes()] * 2), pa.array(["a.wav", "b.wav"])],
        names=["bytes", "path"],
    )
    for split in ("train", "validation", "test"):
        table = pa.table({"audio": audio, "sentence": pa.array([f"a {split}", ""])})
        pq.write_table(table, folder / f"{split}.parquet")
    changes = {
        **{f"data.{split}": None for split in ("train", "validation", "test")},
        "data.dataset": {"name": str(folder)},
        "data.audio_column_name": "audio",
        "data.text_column_name": "sentence",
    }
    subject = subject_of(tmp_path, changes)
    assert levels(check_manifests, subject) == {"ok"}
    assert levels(check_recordings, subject) == {"ok"}
    assert levels(check_durations, subject) == {"ok"}
    assert levels(check_transcripts, subject) == {"warning"}
