"""The folder that preparing makes: what is read from it, who finds it again, and what interrupted writers leave."""

import io
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import soundfile

from tests.settings import examples
from tests.trainers.data.preparing import DURATIONS_S, Cache, never
from tests.trainers.synthetic import RATE_HZ, speechlike, write_recording, write_rows
from trainers.data.audio import decode
from trainers.data.preparation import ShardTask, blocks_of, run_in_process
from trainers.data.prepared_set import ClipReader, PreparedSet, Summary, shard_name
from trainers.data.sources.recording_readers import Row
from trainers.errors import AudioError, DataError, StorageError
from trainers.storage.local_folder import LocalStorage


def read_all(prepared: PreparedSet) -> tuple[list[Any], list[list[int]], Summary, list[dict[str, str]]]:
    """All that is read from a set, by a node that has no copy of it."""
    fresh = PreparedSet(prepared.url, prepared.key, prepared.storage_options, prepared.sha256)
    shutil.rmtree(fresh._node.folder, ignore_errors=True)
    reader = ClipReader(fresh, cache_bytes=1)
    clips = [reader.read(position).tolist() for position in range(len(fresh.index))]
    return fresh.index.to_pylist(), clips, fresh.summary, fresh.quarantine


def contents(prepared: PreparedSet) -> list[bytes]:
    """The bytes of each shard."""
    names = [entry.key for entry in prepared.storage.list_files() if entry.key.startswith("shard-")]
    return [prepared.storage.read_bytes(name) for name in names]


class NotedReader:
    """Runs tasks in this process, and notes of which shards recordings are read."""

    def __init__(self) -> None:
        self.shards: list[int] = []

    def run(self, blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        self._reader = task.reader
        return run_in_process(blocks, replace(task, reader=self))

    def read(self, rows: Sequence[Row]) -> Iterator[bytes | AudioError]:
        self.shards += dict.fromkeys(row["shard"] for row in rows)
        return self._reader.read(rows)


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

    @pytest.mark.integration
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

    @pytest.mark.integration
    def test_counts_add_up(self, cache: Cache, long_manifest: Path) -> None:
        made = cache.prepare(long_manifest)
        summary = made.summary
        assert (summary.rows, summary.prepared, summary.quarantined) == (600, 600, 0)
        assert summary.duration_s == pytest.approx(120 * sum(DURATIONS_S), abs=1e-2)
        stored = [entry.size_bytes for entry in made.storage.list_files() if entry.key.startswith("shard-")]
        assert (len(stored), sum(stored)) == (3, summary.stored_bytes)

    @pytest.mark.integration
    def test_clips_are_read_back_by_their_place(self, cache: Cache, long_manifest: Path) -> None:
        made = cache.prepare(long_manifest)
        reader = ClipReader(made, cache_bytes=10**9)
        reader.prefetch(np.arange(600))
        for position in (0, 599, 256, 3, 511, 512):
            number = position % 5
            assert np.array_equal(reader.read(position), speechlike(DURATIONS_S[number], seed=number))

    @pytest.mark.integration
    def test_a_flipped_bit_is_found_wherever_it_is(self, folder: Cache, manifest: Path) -> None:
        prepared = folder.prepare(manifest)
        files = [Path(prepared.url) / name for name in ("shard-00000.arrow", "index.parquet", "summary.json")]
        draws, refused = np.random.default_rng(1), set()
        expected, tries = read_all(prepared), examples(30)
        for path in files:
            content = path.read_bytes()
            for place, bit in zip(draws.integers(0, len(content), tries), draws.integers(0, 8, tries), strict=True):
                damaged = bytearray(content)
                damaged[place] ^= 1 << bit
                path.write_bytes(damaged)
                try:
                    assert read_all(prepared) == expected, f"bit {bit} of byte {place} of {path.name}"
                except DataError as error:
                    assert "prepare again" in str(error)
                    refused.add(path.name)
            path.write_bytes(content)
        assert refused == {path.name for path in files}

    def test_a_cut_pointer_is_refused(self, folder: Cache, manifest: Path) -> None:
        pointer = Path(folder.url) / f"{folder.prepare(manifest).key}.json"
        pointer.write_bytes(pointer.read_bytes()[:20])
        with pytest.raises(DataError, match="delete it, and prepare again"):
            folder.prepare(manifest)

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
            yield from run_in_process(blocks[::-1], task)

        ids = folder.prepare(long_manifest, runner=backwards).index["id"].to_pylist()
        assert ids[:2] == ["train/000.wav", "train/001.wav"]
        assert ids[-1] == "train/004.wav#120"


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


class TestInterrupted:
    @pytest.mark.integration
    def test_a_run_that_is_started_again_keeps_the_shards_that_it_finished(
        self, cache: Cache, long_manifest: Path
    ) -> None:
        with cache.start_process(long_manifest, stop="1", run="killed") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "stopped\n"
            process.kill()
        finished = cache.storage.list_files()
        assert len(finished) == 2
        noted = NotedReader()
        made = cache.prepare(long_manifest, runner=noted.run, run="killed")
        assert noted.shards == [2]
        assert [entry for entry in cache.storage.list_files() if entry in finished] == finished
        calm = Cache(f"{cache.url}-calm", cache.endpoint).prepare(long_manifest)
        assert made.index == calm.index
        assert made.summary == calm.summary
        assert contents(made) == contents(calm)

    def test_a_fault_in_the_middle_keeps_them_too_and_bad_rows_in_them_stay_bad(
        self, folder: Cache, manifest: Path
    ) -> None:
        (manifest.parent / "train" / "003.wav").unlink()
        rows = write_rows(manifest.with_name("gone.csv"), [(f"train/{row % 5:03d}.wav", "a") for row in range(300)])

        def failing(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
            yield task(blocks[0])
            raise RuntimeError("a node is gone")

        with pytest.raises(RuntimeError, match="a node is gone"):
            folder.prepare(rows, runner=failing, run="failed", max_bad_fraction=0.3)
        noted = NotedReader()
        made = folder.prepare(rows, runner=noted.run, run="failed", max_bad_fraction=0.3)
        assert noted.shards == [1]
        assert (made.summary.prepared, made.summary.quarantined) == (240, 60)
        assert {row["reason"] for row in made.quarantine} == {"no such file"}

    def test_a_damaged_shard_is_named_and_the_next_start_is_from_scratch(
        self, folder: Cache, long_manifest: Path
    ) -> None:
        def failing(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
            yield task(blocks[0])
            (shard,) = Path(task.folder_url).glob("*.arrow")
            shard.write_bytes(shard.read_bytes()[:100])
            raise RuntimeError("a node is gone")

        with pytest.raises(RuntimeError):
            folder.prepare(long_manifest, runner=failing, run="failed")
        with pytest.raises(DataError, match=r"shard-00000\.arrow: this shard is damaged .*: prepare again"):
            folder.prepare(long_manifest, run="failed")
        assert folder.prepare(long_manifest, run="failed").summary.prepared == 600

    def test_of_two_tasks_that_do_one_shard_at_once_the_first_to_finish_counts(
        self, folder: Cache, manifest: Path
    ) -> None:
        recording = manifest.parent / "train" / "003.wav"
        content = recording.read_bytes()

        def racing(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
            class Slow:
                def read(self, rows: Sequence[Row]) -> Iterator[bytes | AudioError]:
                    recording.unlink()
                    first.append(task(blocks[0]))
                    recording.write_bytes(content)
                    return task.reader.read(rows)

            first: list[pa.Table] = []
            slower = replace(task, reader=Slow())(blocks[0])
            assert slower == first[0]
            yield slower

        made = folder.prepare(manifest, runner=racing, max_bad_fraction=0.5)
        assert [row["id"] for row in made.quarantine] == ["train/003.wav"]
        assert len(read_all(made)[1]) == 4

    def test_a_shard_without_a_clip_is_finished_too(self, folder: Cache, manifest: Path) -> None:
        shutil.rmtree(manifest.parent / "train")

        def twice(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
            results = task(blocks[0])
            again = NotedReader()
            assert list(again.run(blocks, task)) == [results]
            assert again.shards == []
            yield results

        with pytest.raises(DataError, match="5 of 5 recordings cannot be decoded"):
            folder.prepare(manifest, runner=twice, max_bad_fraction=1.0)

    @pytest.mark.integration
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
        assert cache.storage.list_folders() == [made.url.rpartition("/")[2]], "what was killed is removed"

    @pytest.mark.integration
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

    def test_what_was_killed_is_removed_and_another_set_stays(self, folder: Cache, manifest: Path) -> None:
        other = folder.prepare(manifest, do_lower_case=True)
        killed = Path(folder.prepare(manifest).url)
        killed.with_name(killed.name.partition("-")[0] + ".json").unlink()
        made = folder.prepare(manifest)
        assert sorted(folder.storage.list_folders()) == sorted(Path(each.url).name for each in (other, made))

    def test_preparing_a_set_does_not_look_into_the_others(
        self, folder: Cache, manifest: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = Path(folder.prepare(manifest, do_lower_case=True).url)
        looked: list[Path] = []
        walk = LocalStorage._walk

        def walk_and_note(storage: LocalStorage, path: Path) -> Iterator[tuple[str, list[str]]]:
            looked.append(path)
            return walk(storage, path)

        monkeypatch.setattr(LocalStorage, "_walk", walk_and_note)
        made = Path(folder.prepare(manifest).url)
        assert made in looked and other not in looked

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_slower_writer_gives_the_set_of_the_faster(self, folder: Cache, manifest: Path, fails: bool) -> None:
        faster: list[PreparedSet] = []

        def slow(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
            results = task(blocks[0])
            faster.append(folder.prepare(manifest))
            if fails:
                raise StorageError("the folder was removed")
            yield results

        assert folder.prepare(manifest, runner=slow).url == faster[0].url
        assert folder.storage.list_folders() == [Path(faster[0].url).name]
