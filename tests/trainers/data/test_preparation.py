import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import datasets
import numpy as np
import pyarrow as pa
import pytest
import soundfile

from tests.trainers.synthetic import RATE_HZ, speechlike, write_corpus, write_recording, write_rows
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.audio import decode
from trainers.data.preparation import FETCHED_AHEAD, Runner, ShardTask, blocks_of, prepare, run_here
from trainers.data.prepared_set import ClipReader, PreparedSet, shard_name
from trainers.data.sources.located_files import read_location
from trainers.data.sources.opening import open_sources
from trainers.errors import DataError
from trainers.storage import Storage, open_storage

ROOT = Path(__file__).parents[3]
TEXTS = ["One, two!", "three", "četiri", "", "five"]
DURATIONS_S = [0.5, 0.301, 1.0, 0.25, 0.7]


@dataclass(frozen=True)
class Cache:
    """Where sets are prepared to: a folder, or a bucket."""

    url: str
    endpoint: str | None

    @property
    def storage(self) -> Storage:
        return open_storage(self.url, StorageOptions(self.endpoint))

    def prepare(self, manifest: Path | str, runner: Runner = run_here, **options: Any) -> PreparedSet:
        data = DataPart(train=str(manifest), validation="/nowhere.csv", **options)
        (source,) = open_sources(data, storage_options=StorageOptions(self.endpoint), splits=("train",))
        return prepare(
            source,
            data,
            cache_url=self.url,
            storage_options=StorageOptions(self.endpoint),
            runner=runner,
            log=lambda line: None,
        )

    def start_process(self, manifest: Path, stop: str) -> "subprocess.Popen[str]":
        arguments = [str(manifest), self.url, self.endpoint or "-", stop]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.trainers.data.prepare_process", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def folder(tmp_path: Path) -> Cache:
    return Cache(str(tmp_path / "prepared sets"), None)


@pytest.fixture(params=["folder", "bucket"])
def cache(request: pytest.FixtureRequest, folder: Cache) -> Cache:
    if request.param == "folder":
        return folder
    bucket = request.getfixturevalue("s3_bucket")
    return Cache(f"{bucket}/prepared", request.getfixturevalue("s3_endpoint"))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Five recordings."""
    return write_corpus(tmp_path, TEXTS, durations_s=DURATIONS_S)


@pytest.fixture
def long_manifest(manifest: Path) -> Path:
    """600 rows of the same five recordings: three shards."""
    rows = [(f"train/{row % 5:03d}.wav", TEXTS[row % 5]) for row in range(600)]
    return write_rows(manifest.with_name("long.csv"), rows)


def never(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
    raise AssertionError("prepared again")
    yield


class TestFolder:
    def test_datasets_opens_it_with_encoded_clips(self, folder: Cache, manifest: Path) -> None:
        loaded = datasets.load_from_disk(folder.prepare(manifest).url)
        assert loaded.features["audio"] == datasets.Audio(sampling_rate=RATE_HZ, decode=False)
        assert loaded["id"][:] == [f"train/{number:03d}.wav" for number in range(5)]
        for number, row in enumerate(loaded):
            info = soundfile.info(io.BytesIO(row["audio"]["bytes"]))
            assert (info.format, info.subtype, info.samplerate, info.channels) == ("FLAC", "PCM_16", RATE_HZ, 1)
            samples, _ = soundfile.read(io.BytesIO(row["audio"]["bytes"]), dtype="int16")
            assert np.array_equal(samples, speechlike(DURATIONS_S[number], seed=number))
            assert row["duration_s"] == len(samples) / RATE_HZ

    def test_index_agrees_with_the_shards(self, cache: Cache, long_manifest: Path) -> None:
        made = cache.prepare(long_manifest)
        shards = {
            shard: pa.ipc.open_stream(made.storage.read_bytes(shard_name(shard))).read_all() for shard in (0, 1, 2)
        }
        assert [len(table) for table in shards.values()] == [256, 256, 88]
        assert len(made.index) == 600
        for entry in made.index.to_pylist():
            stored = shards[entry["shard"]].slice(entry["row"], 1).to_pylist()[0]
            assert [stored[name] for name in ("id", "text", "duration_s")] == [
                entry[name] for name in ("id", "text", "duration_s")
            ]

    def test_counts_add_up(self, cache: Cache, long_manifest: Path) -> None:
        made = cache.prepare(long_manifest)
        summary = made.summary
        assert (summary.rows, summary.prepared, summary.quarantined) == (600, 600, 0)
        assert summary.duration_s == pytest.approx(120 * sum(DURATIONS_S), abs=1e-2)
        stored = [entry.size_bytes for entry in made.storage.list_files() if entry.key.startswith("shard-")]
        assert (len(stored), sum(stored)) == (3, summary.stored_bytes)

    def test_clips_are_read_back_by_their_place(self, cache: Cache, long_manifest: Path) -> None:
        made = cache.prepare(long_manifest)
        reader = ClipReader(made, cache_bytes=10**9)
        reader.prefetch(np.arange(600))
        for position in (0, 599, 256, 3, 511, 512):
            number = position % 5
            assert np.array_equal(reader.read(position), speechlike(DURATIONS_S[number], seed=number))

    def test_text_is_normalized_as_asked(self, folder: Cache, manifest: Path) -> None:
        made = folder.prepare(manifest, do_lower_case=True, do_remove_punctuation=True)
        assert made.index["text"].to_pylist() == ["one two", "three", "četiri", "", "five"]

    def test_other_rates_and_channels_become_mono_at_16_khz(self, folder: Cache, tmp_path: Path) -> None:
        stereo = np.stack([speechlike(0.5)] * 2, axis=1)
        write_recording(tmp_path / "a.wav", stereo, 48_000)
        made = folder.prepare(write_rows(tmp_path / "m.csv", [("a.wav", "a")]))
        samples = ClipReader(made, cache_bytes=1).read(0)
        expected = decode((tmp_path / "a.wav").read_bytes(), name="a.wav")
        assert len(samples) == len(expected) == round(8000 / 48_000 * RATE_HZ)
        assert np.abs(samples / 32768 - expected).max() <= 0.5 / 32768 + 1e-7

    def test_the_cut_into_shards_keeps_every_row(self) -> None:
        blocks = blocks_of(pa.table({"row": range(10)}), 4)
        assert [block["shard"].to_pylist() for block in blocks] == [[0] * 4, [1] * 4, [2] * 2]
        assert pa.concat_tables(blocks)["row"].to_pylist() == list(range(10))

    def test_results_may_come_in_any_order(self, folder: Cache, long_manifest: Path) -> None:
        def backwards(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
            yield from run_here(blocks[::-1], task)

        ids = folder.prepare(long_manifest, runner=backwards).index["id"].to_pylist()
        assert ids[:2] == ["train/000.wav", "train/001.wav"]
        assert ids[-1] == "train/004.wav#120"


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

        monkeypatch.setattr("trainers.data.preparation.read_location", meeting)
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


class TestReuse:
    def test_the_same_request_finds_the_same_set(self, cache: Cache, manifest: Path) -> None:
        first = cache.prepare(manifest)
        again = cache.prepare(manifest, runner=never)
        assert (again.url, again.key) == (first.url, first.key)

    @pytest.mark.parametrize(
        "options", [{"do_lower_case": True}, {"do_remove_punctuation": True}, {"chars_to_ignore": ("o",)}]
    )
    def test_other_options_are_another_set(self, folder: Cache, manifest: Path, options: dict[str, Any]) -> None:
        assert folder.prepare(manifest, **options).key != folder.prepare(manifest).key

    def test_options_that_change_no_byte_are_the_same_set(self, folder: Cache, manifest: Path) -> None:
        first = folder.prepare(manifest)
        assert folder.prepare(manifest, runner=never, max_duration_s=5.0, min_duration_s=0.2).url == first.url

    @pytest.mark.parametrize(("kind", "again"), [("content", False), ("metadata", True), ("manifest", False)])
    def test_a_touched_recording_is_prepared_again_only_where_its_time_counts(
        self, folder: Cache, manifest: Path, kind: str, again: bool
    ) -> None:
        first = folder.prepare(manifest, fingerprint=kind)
        os.utime(manifest.parent / "train" / "001.wav", (1, 1))
        assert (folder.prepare(manifest, fingerprint=kind).key != first.key) == again

    def test_a_replaced_recording_is_prepared_again(self, folder: Cache, manifest: Path) -> None:
        folder.prepare(manifest)
        write_recording(manifest.parent / "train" / "001.wav", speechlike(0.9, seed=9))
        samples = ClipReader(folder.prepare(manifest), cache_bytes=1).read(1)
        assert np.array_equal(samples, speechlike(0.9, seed=9))

    def test_another_transcript_is_another_set(self, folder: Cache, manifest: Path) -> None:
        first = folder.prepare(manifest)
        manifest.write_text(manifest.read_text().replace("three", "seven"))
        again = folder.prepare(manifest)
        assert again.key != first.key
        assert again.index["text"][1].as_py() == "seven"


class TestQuarantine:
    @pytest.fixture
    def bad_manifest(self, manifest: Path) -> Path:
        here = manifest.parent
        (here / "empty.wav").write_bytes(b"")
        (here / "text.wav").write_text("this is no recording")
        (here / "folder.wav").mkdir()
        (here / "cut.wav").write_bytes((here / "train" / "002.wav").read_bytes()[:5000])
        bad = [("empty.wav", ""), ("text.wav", ""), ("folder.wav", ""), ("cut.wav", ""), ("gone.wav", "")]
        return write_rows(here / "bad.csv", [("train/000.wav", "one"), *bad, ("train/001.wav", "two")])

    def test_each_bad_row_is_kept_with_its_reason(self, cache: Cache, bad_manifest: Path) -> None:
        made = cache.prepare(bad_manifest, max_bad_fraction=0.8)
        reasons = {row["id"]: row["reason"] for row in made.quarantine}
        assert list(reasons) == ["empty.wav", "text.wav", "folder.wav", "cut.wav", "gone.wav"]
        assert "empty" in reasons["empty.wav"]
        assert "no header of an audio format" in reasons["text.wav"]
        assert "folder" in reasons["folder.wav"]
        assert "ends in the middle" in reasons["cut.wav"]
        assert reasons["gone.wav"] == "no such file"
        assert made.index["id"].to_pylist() == ["train/000.wav", "train/001.wav"]
        assert (made.summary.rows, made.summary.prepared, made.summary.quarantined) == (7, 2, 5)
        assert np.array_equal(ClipReader(made, cache_bytes=10**9).read(1), speechlike(0.301, seed=1))

    @pytest.mark.parametrize("fraction", [0.05, 0.7])
    def test_too_many_stop_with_the_worst_reasons(self, folder: Cache, bad_manifest: Path, fraction: float) -> None:
        with pytest.raises(DataError) as caught:
            folder.prepare(bad_manifest, max_bad_fraction=fraction)
        message = str(caught.value)
        assert f"5 of 7 recordings cannot be decoded, more than data.max_bad_fraction {fraction}" in message
        assert "1 × no such file" in message
        assert "raise data.max_bad_fraction" in message
        assert folder.storage.list_files() == []

    def test_a_finished_set_is_judged_by_the_bound_of_now(self, folder: Cache, bad_manifest: Path) -> None:
        folder.prepare(bad_manifest, max_bad_fraction=0.9)
        with pytest.raises(DataError, match="5 of 7 recordings"):
            folder.prepare(bad_manifest, runner=never, max_bad_fraction=0.1)

    def test_a_set_without_a_single_clip_is_refused(self, folder: Cache, tmp_path: Path) -> None:
        path = write_rows(tmp_path / "none.csv", [("gone.wav", "a")])
        with pytest.raises(DataError, match="1 of 1 recordings cannot be decoded"):
            folder.prepare(path, max_bad_fraction=1.0)


class TestInterrupted:
    def test_a_fault_in_the_middle_leaves_nothing(self, cache: Cache, long_manifest: Path) -> None:
        def failing(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
            yield task(blocks[0])
            raise RuntimeError("a node is gone")

        with pytest.raises(RuntimeError, match="a node is gone"):
            cache.prepare(long_manifest, runner=failing)
        assert cache.storage.list_files() == []
        assert cache.prepare(long_manifest).summary.prepared == 600

    @pytest.mark.slow
    def test_a_killed_process_never_looks_finished(self, cache: Cache, long_manifest: Path) -> None:
        with cache.start_process(long_manifest, stop="1") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "stopped\n"
            process.kill()
        keys = [entry.key for entry in cache.storage.list_files()]
        assert sum(key.endswith(".arrow") for key in keys) == 2
        assert not [key for key in keys if key.endswith(".json")]
        made = cache.prepare(long_manifest)
        assert made.summary.prepared == 600
        assert made.url.rpartition("/")[2] not in {key.partition("/")[0] for key in keys}

    @pytest.mark.slow
    def test_two_at_once_give_one_set_and_both_succeed(self, cache: Cache, long_manifest: Path) -> None:
        processes = [cache.start_process(long_manifest, stop="end") for _ in range(2)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "stopped\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        answers = {process.communicate(timeout=60)[0].strip() for process in processes}
        assert [process.returncode for process in processes] == [0, 0]
        assert len(answers) == 1
        assert len(cache.storage.list_folders()) == 1
        made = cache.prepare(long_manifest, runner=never)
        assert {made.url} == answers
        assert len(made.index) == made.summary.prepared == 600

    def test_what_was_killed_long_ago_is_cleared_and_a_live_one_stays(self, folder: Cache, manifest: Path) -> None:
        key = folder.prepare(manifest).key
        root = Path(folder.url)
        (root / f"{key}.json").unlink()
        for name in ("dead", "live"):
            (root / f"{key}-{name}").mkdir()
            (root / f"{key}-{name}" / "shard-00000.arrow").write_bytes(b"")
        long_ago = time.time() - 3 * 24 * 3600
        os.utime(root / f"{key}-dead" / "shard-00000.arrow", (long_ago, long_ago))
        folder.prepare(manifest)
        assert not (root / f"{key}-dead").exists()
        assert (root / f"{key}-live").exists()


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
