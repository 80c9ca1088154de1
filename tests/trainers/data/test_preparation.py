"""From rows to clips: which recordings are stored, and which are left out with a reason."""

import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import numpy as np
import pytest

from tests.s3 import FaultProxy
from tests.trainers.data.preparing import DURATIONS_S, TEXTS, Cache, never
from tests.trainers.synthetic import RATE_HZ, speechlike, write_recording, write_rows
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.audio import decode
from trainers.data.prepared_set import ClipReader, PreparedSet
from trainers.data.sources.known_sources import open_sources
from trainers.data.sources.located_files import read_location
from trainers.data.sources.recording_readers import FETCHED_AHEAD
from trainers.distributed.console import Event
from trainers.errors import DataError, StorageError
from trainers.storage import open_storage


class TestSegments:
    """Rows that are parts of two recordings of 3 and 2 s, in no order."""

    SPANS = (("a", 1.0, 0.5), ("b", 0.0, 1.0), ("a", 0.0, 1.0), ("b", 1.2, None), ("a", 2.0, 1.1))

    @pytest.fixture
    def segments(self, tmp_path: Path) -> Path:
        for seed, (name, duration_s) in enumerate((("a", 3.0), ("b", 2.0))):
            write_recording(tmp_path / f"{name}.wav", speechlike(duration_s, seed=seed))
        rows = [
            {"audio_filepath": f"{name}.wav", "text": str(row), "offset": offset_s or None, "duration": duration_s}
            for row, (name, offset_s, duration_s) in enumerate(self.SPANS)
        ]
        path = tmp_path / "segments.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path

    def prepare(self, folder: Cache, manifest: Path, **options: Any) -> PreparedSet:
        return folder.prepare(manifest, audio_column_name="audio_filepath", **options)

    def test_each_row_is_its_part_of_a_recording_that_is_decoded_once(
        self, folder: Cache, segments: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        decoded: list[str] = []

        def counting(source: bytes, *, name: str, **options: Any) -> np.ndarray:
            decoded.append(name)
            return decode(source, name=name, **options)

        monkeypatch.setattr("trainers.data.preparation.decode", counting)
        made = self.prepare(folder, segments)
        assert [Path(name).stem for name in decoded] == ["a", "b"]
        assert made.index["text"].to_pylist() == ["0", "1", "2", "3", "4"]
        assert made.index["id"].to_pylist() == ["a.wav", "b.wav", "a.wav#2", "b.wav#2", "a.wav#3"]
        complete = {"a": speechlike(3.0, seed=0), "b": speechlike(2.0, seed=1)}
        reader = ClipReader(made, cache_bytes=1)
        for row, (name, offset_s, duration_s) in enumerate(self.SPANS):
            end = None if duration_s is None else round((offset_s + duration_s) * RATE_HZ)
            assert np.array_equal(reader.read(row), complete[name][round(offset_s * RATE_HZ) : end])

    def test_the_columns_are_those_of_csv_too(self, folder: Cache, segments: Path) -> None:
        lines = ["audio_filepath,text,offset,duration"]
        lines += [f"{name}.wav,{row},{span[0]},{span[1] or ''}" for row, (name, *span) in enumerate(self.SPANS)]
        table = segments.with_name("segments.csv")
        table.write_text("\n".join(lines))
        durations_s = [self.prepare(folder, path).index["duration_s"].to_pylist() for path in (segments, table)]
        assert durations_s[0] == durations_s[1] == [0.5, 1.0, 1.0, 0.8, 1.0]

    def test_one_beyond_the_end_and_an_empty_one_are_quarantined(self, folder: Cache, segments: Path) -> None:
        text = segments.read_text().replace('"duration": 1.1', '"duration": 1.9').replace("0.5}", "0.0}")
        segments.write_text(text)
        reasons = [row["reason"] for row in self.prepare(folder, segments, max_bad_fraction=0.5).quarantine]
        assert reasons == [
            "the segment at 1 s has a duration of 0 s",
            "is 3.00 s long, and ends before the segment of 2 to 3.9 s does",
        ]

    def test_a_recording_that_is_damaged_quarantines_each_of_its_segments(self, folder: Cache, segments: Path) -> None:
        (segments.parent / "b.wav").write_bytes((segments.parent / "b.wav").read_bytes()[:40000])
        made = self.prepare(folder, segments, max_bad_fraction=0.5)
        assert made.index["id"].to_pylist() == ["a.wav", "a.wav#2", "a.wav#3"]
        assert {row["reason"].partition(":")[0] for row in made.quarantine} == {"ends in the middle"}

    def test_the_reason_of_a_packed_clip_names_the_rows_that_it_joins(self, folder: Cache, segments: Path) -> None:
        (segments.parent / "a.wav").write_bytes((segments.parent / "a.wav").read_bytes()[:40000])
        made = self.prepare(folder, segments, max_bad_fraction=0.5, pack_segments_s=2.0)
        reasons = {row["id"]: row["reason"] for row in made.quarantine}
        assert reasons["a.wav#2"].endswith(" (a clip of 2 rows from a.wav#2 to a.wav)")
        assert not reasons["a.wav#3"].endswith(")")

    def test_a_recording_of_another_length_than_declared_is_not_taken_for_a_segment_or_complete(
        self, folder: Cache, segments: Path
    ) -> None:
        rows = ["audio_filepath,text,duration", "a.wav,rounded,2", "a.wav,exact,3", "a.wav,wrong,1", "a.wav,cut,9"]
        segments.with_name("no_offset.csv").write_text("\n".join(rows))
        made = self.prepare(folder, segments.with_name("no_offset.csv"), max_bad_fraction=0.5)
        assert made.index["duration_s"].to_pylist() == [3.0, 3.0]
        assert [row["reason"].partition(":")[0] for row in made.quarantine] == [
            "is 3.00 s long, where the manifest's duration is 1 s",
            "is 3.00 s long, where the manifest's duration is 9 s",
        ]


class TestRecordingsInABucket:
    @pytest.fixture
    def bucket_manifest(self, manifest: Path, s3_bucket: str, s3_endpoint: str) -> str:
        """40 rows of the five recordings, all in the bucket."""
        storage = open_storage(f"{s3_bucket}/corpus", StorageOptions(s3_endpoint))
        storage.upload_folder(manifest.parent / "train", "train")
        rows = [(f"train/{row % 5:03d}.wav", TEXTS[row % 5]) for row in range(40)]
        storage.upload_file(write_rows(manifest.with_name("bucket.csv"), rows), "train.csv")
        return storage.url("train.csv")

    def test_they_are_read_through_one_client(
        self, bucket_manifest: str, folder: Cache, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = 0
        new_client = boto3.session.Session.client

        def counting(*arguments: Any, **options: Any) -> Any:
            nonlocal made
            made += 1
            return new_client(*arguments, **options)

        monkeypatch.setattr(boto3.session.Session, "client", counting)
        prepared = Cache(folder.url, s3_endpoint).prepare(bucket_manifest)
        assert prepared.summary.prepared == 40
        assert made <= 1

    def test_they_are_fetched_at_the_same_time_and_stored_in_order(
        self, bucket_manifest: str, folder: Cache, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        together = threading.Barrier(FETCHED_AHEAD // 2)

        def meeting(*arguments: Any, **options: Any) -> bytes:
            together.wait(timeout=60)
            return read_location(*arguments, **options)

        monkeypatch.setattr("trainers.data.sources.recording_readers.read_location", meeting)
        made = Cache(folder.url, s3_endpoint).prepare(bucket_manifest)
        reader = ClipReader(made, cache_bytes=1)
        for row in range(40):
            assert np.array_equal(reader.read(row), speechlike(DURATIONS_S[row % 5], seed=row % 5))

    def test_one_that_is_not_there_is_quarantined(
        self, bucket_manifest: str, folder: Cache, s3_bucket: str, s3_endpoint: str
    ) -> None:
        open_storage(f"{s3_bucket}/corpus", StorageOptions(s3_endpoint)).delete("train/003.wav")
        made = Cache(folder.url, s3_endpoint).prepare(bucket_manifest, max_bad_fraction=0.3)
        assert made.summary.quarantined == 8
        assert {row["reason"] for row in made.quarantine} == {"no such file"}

    @pytest.mark.parametrize("name", ["a.wav", "a.tar/a.wav"])
    def test_one_in_a_bucket_that_is_not_there_is_quarantined_and_all_are_an_error(
        self, manifest: Path, folder: Cache, s3_bucket: str, s3_endpoint: str, name: str
    ) -> None:
        url = f"s3://gone-{uuid4().hex}/{name}"
        cache, lines = Cache(folder.url, s3_endpoint), manifest.read_text(encoding="utf-8").splitlines()
        manifest.write_text("\n".join([*lines, f"{url},gone"]), encoding="utf-8")
        made = cache.prepare(manifest, max_bad_fraction=0.3)
        (reason,) = {row["reason"] for row in made.quarantine}
        assert (made.summary.prepared, made.summary.quarantined) == (5, 1)
        assert re.fullmatch(r"the bucket 'gone-\w+' does not exist; create it or .*", reason)
        manifest.write_text("\n".join([lines[0], f"{url},gone"]), encoding="utf-8")
        with pytest.raises(DataError, match=r"1 of 1 recordings cannot be decoded[\S\s]*1 × the bucket 'gone-"):
            cache.prepare(manifest, max_bad_fraction=1.0)

    def test_a_manifest_in_a_bucket_that_is_not_there_is_not_one_that_is_missing(
        self, folder: Cache, s3_bucket: str, s3_endpoint: str
    ) -> None:
        for name in ("train.csv", "corpus.tar/train.csv"):
            with pytest.raises(StorageError, match=r"the bucket 'gone' does not exist"):
                Cache(folder.url, s3_endpoint).prepare(f"s3://gone/{name}")

    @pytest.mark.integration
    def test_one_that_may_not_be_read_is_quarantined(
        self, bucket_manifest: str, folder: Cache, fault_proxy: FaultProxy
    ) -> None:
        fault_proxy.fail_next(
            1000, 403, "GET", error_code="AccessDenied", matches=lambda method, path: path.endswith("/003.wav")
        )
        made = Cache(folder.url, fault_proxy.url).prepare(bucket_manifest, max_bad_fraction=0.3)
        assert made.summary.quarantined == 8
        (reason,) = {row["reason"] for row in made.quarantine}
        assert reason.startswith("permission denied (403 AccessDenied: as asked); allow s3:GetObject on its objects")


class TestQuarantine:
    @pytest.fixture
    def bad_manifest(self, manifest: Path) -> Path:
        here = manifest.parent
        (here / "empty.wav").write_bytes(b"")
        (here / "text.wav").write_text("this is no recording")
        (here / "folder.wav").mkdir()
        (here / "cut.wav").write_bytes((here / "train" / "002.wav").read_bytes()[:5000])
        bad = [("empty.wav", ""), ("text.wav", ""), ("folder.wav", ""), ("cut.wav", ""), ("gone\u2028.wav", "")]
        return write_rows(here / "bad.csv", [("train/000.wav", "one"), *bad, ("train/001.wav", "two")])

    def test_each_bad_row_is_kept_with_its_reason(self, cache: Cache, bad_manifest: Path) -> None:
        made = cache.prepare(bad_manifest, max_bad_fraction=0.8)
        reasons = {row["id"]: row["reason"] for row in made.quarantine}
        assert list(reasons) == ["empty.wav", "text.wav", "folder.wav", "cut.wav", "gone\u2028.wav"]
        assert "empty" in reasons["empty.wav"]
        assert "no header of an audio format" in reasons["text.wav"]
        assert "folder" in reasons["folder.wav"]
        assert "ends in the middle" in reasons["cut.wav"]
        assert reasons["gone\u2028.wav"] == "no such file"
        assert made.index["id"].to_pylist() == ["train/000.wav", "train/001.wav"]
        assert (made.summary.rows, made.summary.prepared, made.summary.quarantined) == (7, 2, 5)
        assert np.array_equal(ClipReader(made, cache_bytes=10**9).read(1), speechlike(0.301, seed=1))

    def test_a_path_that_can_name_no_file_is_a_bad_row_and_not_a_fault_of_the_disk(
        self, folder: Cache, manifest: Path
    ) -> None:
        manifest.with_name("circle.wav").symlink_to("circle.wav")
        paths = ["train/000.wav/x.wav", "circle.wav", f"{'x' * 300}.wav"]
        rows = write_rows(manifest.with_name("bad.csv"), [("train/000.wav", "one"), *((path, "") for path in paths)])
        made = folder.prepare(rows, max_bad_fraction=0.8)
        assert [row["id"] for row in made.quarantine] == paths
        assert all(row["reason"].startswith("no such file (") for row in made.quarantine)

    def test_a_path_that_only_looks_like_one_that_is_there_is_told_from_it(self, folder: Cache, manifest: Path) -> None:
        shutil.copy(manifest.parent / "train" / "000.wav", manifest.parent / "cafe\u0301.wav")
        paths = ["caf\u00e9.wav", "train/001.wav "]
        rows = write_rows(manifest.with_name("bad.csv"), [("train/000.wav", "one"), *((path, "") for path in paths)])
        reasons = [row["reason"] for row in folder.prepare(rows, max_bad_fraction=0.8).quarantine]
        assert "the same in Unicode's NFD" in reasons[0]
        assert "the same without spaces around it" in reasons[1]

    @pytest.mark.parametrize("fraction", [0.05, 0.7])
    def test_too_many_stop_with_the_worst_reasons(self, folder: Cache, bad_manifest: Path, fraction: float) -> None:
        with pytest.raises(DataError) as caught:
            folder.prepare(bad_manifest, max_bad_fraction=fraction)
        message = str(caught.value)
        assert f"5 of 7 recordings cannot be decoded, more than data.max_bad_fraction {fraction}" in message
        assert "1 × no such file" in message
        assert f"fix them, take them out of {bad_manifest}, or raise data.max_bad_fraction" in message
        assert folder.storage.list_files() == []

    @pytest.mark.parametrize("quarantined", [0, 2])
    @pytest.mark.integration
    def test_clips_without_text_are_counted_in_a_line(self, folder: Cache, manifest: Path, quarantined: int) -> None:
        said: list[Event] = []
        with manifest.open("a") as file:
            file.writelines(f"gone/{number}.wav,\n" for number in range(quarantined))
        folder.prepare(manifest, log=said.append, max_bad_fraction=0.5)
        assert said[-1] == (
            "warning: train: 1 of 5 clips have no text and are left out of training; "
            f"write their texts into {manifest}, or take them out"
        )

    def test_a_finished_set_is_judged_by_the_bound_of_now(self, folder: Cache, bad_manifest: Path) -> None:
        folder.prepare(bad_manifest, max_bad_fraction=0.9)
        with pytest.raises(DataError, match="5 of 7 recordings"):
            folder.prepare(bad_manifest, runner=never, max_bad_fraction=0.1)

    def test_a_set_without_a_single_clip_is_refused(self, folder: Cache, tmp_path: Path) -> None:
        path = write_rows(tmp_path / "none.csv", [("gone.wav", "a")])
        with pytest.raises(DataError, match="1 of 1 recordings cannot be decoded"):
            folder.prepare(path, max_bad_fraction=1.0)


class TestOddAudio:
    def test_each_recording_is_decoded_whole_or_has_a_reason(self, folder: Cache, speech_data: Path) -> None:
        made = folder.prepare(speech_data / "odd_audio" / "manifest.csv", max_bad_fraction=0.2)
        (source,) = open_sources(
            DataPart(train=str(speech_data / "odd_audio" / "manifest.csv"), validation="/nowhere.csv"),
            storage_options=StorageOptions(),
            splits=("train",),
        )
        promised_s = dict(zip(source.table["id"].to_pylist(), source.table["duration_s"].to_pylist(), strict=True))
        for clip in made.index.to_pylist():
            assert clip["duration_s"] == pytest.approx(promised_s.pop(clip["id"]), abs=0.15), clip["id"]
        assert set(promised_s) == {row["id"] for row in made.quarantine}
        assert all(row["reason"] for row in made.quarantine)

    def test_a_broken_recording_is_never_taken_for_silence(
        self, folder: Cache, speech_data: Path, manifest: Path
    ) -> None:
        broken = sorted((speech_data / "odd_audio" / "broken").iterdir())
        rows = [("train/000.wav", "good"), *((str(path), "broken") for path in broken)]
        made = folder.prepare(write_rows(manifest.with_name("broken.csv"), rows), max_bad_fraction=1.0)
        assert made.summary.rows == len(broken) + 1
        assert all(len(row["reason"]) > 10 for row in made.quarantine)
        reader = ClipReader(made, cache_bytes=1)
        assert all(len(reader.read(position)) for position in range(len(made.index)))
