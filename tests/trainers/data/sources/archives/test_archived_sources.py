"""Sets that are prepared from archives, which lie in a folder, in a bucket, or on a web server."""

import gzip
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import webdataset
from lhotse import CutSet, Recording
from lhotse.cut import MonoCut
from lhotse.supervision import SupervisionSegment

from tests.folder_server import web_server
from tests.trainers.data.preparing import Cache, never
from tests.trainers.data.sources.archives.made_archives import (
    manifest_members,
    recording,
    text,
    wave,
    write_tar,
)
from tests.trainers.synthetic import RATE_HZ
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.prepared_set import ClipReader, PreparedSet
from trainers.data.sources.archives.archive_index import open_index
from trainers.data.sources.known_sources import open_sources
from trainers.errors import DataError, StorageError
from trainers.storage import open_storage

COUNT = 7


@dataclass(frozen=True)
class Place:
    """Where archives lie: they are written to a folder, and `put` gives the URL or path of that folder elsewhere."""

    put: Callable[[Path], str]
    cache: Cache


@pytest.fixture(params=["folder", "bucket", "web"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        yield Place(str, Cache(str(tmp_path / "prepared"), None))
        return
    if request.param == "bucket":
        bucket, endpoint = request.getfixturevalue("s3_bucket"), request.getfixturevalue("s3_endpoint")

        def upload(folder: Path) -> str:
            open_storage(bucket, StorageOptions(endpoint)).upload_folder(folder, "corpus")
            return f"{bucket}/corpus"

        yield Place(upload, Cache(f"{bucket}/prepared", endpoint))
        return
    with ExitStack() as stack:
        yield Place(lambda folder: stack.enter_context(web_server(folder)), Cache(str(tmp_path / "prepared"), None))


def require_clips(found: PreparedSet, numbers: list[int], *, ids: list[str] | None = None) -> None:
    """Asks for these clips in this order, sample by sample."""
    assert found.index["text"].to_pylist() == [text(number) for number in numbers]
    reader = ClipReader(found, cache_bytes=2**30)
    for position, number in enumerate(numbers):
        assert np.array_equal(reader.read(position), wave(number))
    if ids is not None:
        assert found.index["id"].to_pylist() == ids
    assert not found.quarantine


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
@pytest.mark.integration
def test_a_manifest_in_an_archive_has_its_recordings_there(place: Place, tmp_path: Path, suffix: str) -> None:
    mode = "w" if suffix == ".tar" else "w:gz"
    write_tar(tmp_path / "made" / f"corpus{suffix}", manifest_members(COUNT, "inner/"), mode)
    url = f"{place.put(tmp_path / 'made')}/corpus{suffix}/inner/train.tsv"
    require_clips(place.cache.prepare(url), list(range(COUNT)))
    # The second time, neither rows nor archive are read.
    require_clips(place.cache.prepare(url, runner=never), list(range(COUNT)))


@pytest.mark.integration
def test_webdataset_shards_are_read_as_its_writer_has_made_them(place: Place, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with webdataset.ShardWriter(str(tmp_path / "made" / "train-%03d.tar"), maxcount=3, verbose=0) as writer:
        for number in range(COUNT):
            writer.write({"__key__": f"u{number}", "flac": recording(number), "txt": text(number)})
    url = f"webdataset:{place.put(tmp_path / 'made')}/train-{{000..002}}.tar"
    require_clips(place.cache.prepare(url), list(range(COUNT)), ids=[f"u{number}" for number in range(COUNT)])


@pytest.mark.integration
def test_shar_is_read_as_lhotse_has_made_it(place: Place, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "made").mkdir()
    cuts_of(tmp_path / "wavs").to_shar(str(tmp_path / "made"), fields={"recording": "flac"}, shard_size=3)
    folder = place.put(tmp_path / "made")
    # A web server does not list what it has.
    name = "/cuts.{000000..000002}.jsonl.gz" if "web" in request.node.callspec.id else ""
    require_clips(place.cache.prepare(f"shar:{folder}{name}"), list(range(COUNT)))


def cuts_of(folder: Path) -> CutSet:
    folder.mkdir()
    cuts = []
    for number in range(COUNT):
        path = folder / f"{number}.flac"
        path.write_bytes(recording(number))
        heard = Recording.from_file(path)
        spoken = SupervisionSegment(f"s{number}", heard.id, 0, heard.duration, text=text(number), speaker="ana")
        cuts.append(MonoCut(f"c{number}", 0, heard.duration, 0, recording=heard, supervisions=[spoken]))
    return CutSet.from_cuts(cuts)


def test_cuts_are_parts_of_their_recordings(tmp_path: Path) -> None:
    cuts = list(cuts_of(tmp_path / "wavs"))
    cuts[2] = cuts[2].truncate(offset=0.1, duration=0.2)
    CutSet.from_cuts(cuts).to_file(tmp_path / "cuts.jsonl.gz")
    found = Cache(str(tmp_path / "prepared"), None).prepare(f"lhotse:{tmp_path}/cuts.jsonl.gz")
    reader = ClipReader(found, cache_bytes=2**30)
    assert np.array_equal(reader.read(2), wave(2)[RATE_HZ // 10 : 3 * RATE_HZ // 10])
    assert np.array_equal(reader.read(3), wave(3))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"type": "MixedCut"}, "line 1: cut 'c0': is a MixedCut"),
        ({"recording": None}, "has no recording"),
        ({"duration": None}, "cut 'c0'"),
    ],
)
def test_a_cut_of_something_else_is_named(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    (cut, *_) = (each.to_dict() for each in cuts_of(tmp_path / "wavs"))
    (tmp_path / "cuts.jsonl").write_text(json.dumps({**cut, **change}))
    with pytest.raises(DataError, match=problem):
        Cache(str(tmp_path / "prepared"), None).prepare(f"lhotse:{tmp_path}/cuts.jsonl")


def test_a_command_in_a_cut_is_refused_and_not_run(tmp_path: Path) -> None:
    (cut, *_) = (each.to_dict() for each in cuts_of(tmp_path / "wavs"))
    cut["recording"]["sources"][0] |= {"type": "command", "source": f"touch {tmp_path}/run"}
    (tmp_path / "cuts.jsonl").write_text(json.dumps(cut))
    with pytest.raises(DataError, match="type 'command': save it as a file"):
        Cache(str(tmp_path / "prepared"), None).prepare(f"lhotse:{tmp_path}/cuts.jsonl")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("sharded", [False, True], ids=["one manifest", "a manifest for each tar"])
def test_nemo_s_tars_are_read_with_segments(place: Place, tmp_path: Path, sharded: bool) -> None:
    made = tmp_path / "made"
    shards = [[0, 1, 2, 3], [4, 5, 6]]
    lines: list[list[str]] = []
    for number, clips in enumerate(shards):
        write_tar(made / f"audio_{number}.tar", [(f"clip_{clip}.wav", recording(clip, "WAV")) for clip in clips])
        rows = ({"audio_filepath": f"clip_{clip}.wav", "text": text(clip), "shard_id": number} for clip in clips)
        lines.append([json.dumps(row) for row in rows])
    if sharded:
        for number, of_shard in enumerate(lines):
            own = [
                json.dumps({key: value for key, value in json.loads(line).items() if key != "shard_id"})
                for line in of_shard
            ]
            (made / f"manifest_{number}.json").write_text("\n".join(own))
        where = "manifest__OP_0..1_CL_.json"
    else:
        part = {"audio_filepath": "clip_6.wav", "text": text(6), "shard_id": 1, "offset": 0.1, "duration": 0.2}
        (made / "manifest.json").write_text("\n".join([*lines[0], *lines[1], json.dumps(part)]))
        where = "manifest.json"
    found = place.cache.prepare(f"nemo:{place.put(made)}/{where}?tars=audio__OP_0..1_CL_.tar")
    if sharded:
        require_clips(found, list(range(COUNT)))
    else:
        assert found.index["id"].to_pylist()[-2:] == ["clip_6", "clip_6@0.1"]
        assert found.index["duration_s"].to_pylist()[-1] == pytest.approx(0.2)


def test_common_voice_is_read_out_of_its_archive(place: Place, tmp_path: Path) -> None:
    rows = "".join(f"ana\tclip_{number}.mp3\t{text(number) or 'a'}\n" for number in range(COUNT))
    # In the archive, clips are in another order than in the table.
    clips = [(f"cv-corpus/sr/clips/clip_{number}.mp3", recording(number, "MP3")) for number in reversed(range(COUNT))]
    table = ("cv-corpus/sr/train.tsv", f"client_id\tpath\tsentence\n{rows}".encode())
    write_tar(tmp_path / "made" / "cv-sr.tar.gz", [*clips, table], "w:gz")
    found = place.cache.prepare(f"common_voice:{place.put(tmp_path / 'made')}/cv-sr.tar.gz")
    assert found.index["id"].to_pylist() == [f"clip_{number}" for number in reversed(range(COUNT))]
    assert found.index["text"].to_pylist() == [text(number) or "a" for number in reversed(range(COUNT))]
    for seconds, number in zip(found.index["duration_s"].to_pylist(), reversed(range(COUNT)), strict=True):
        assert seconds == pytest.approx(len(wave(number)) / RATE_HZ, abs=0.1)


def test_what_is_wrong_with_a_sample_is_said_of_it_alone(tmp_path: Path) -> None:
    members = [
        ("good.flac", recording(0)),
        ("good.txt", text(0).encode()),
        ("../out.flac", recording(1)),
        ("../out.txt", b"out"),
        ("silent.flac", recording(1)),
        ("text.txt", b"a text"),
        ("two.flac", recording(1)),
        ("two.wav", recording(1, "WAV")),
        ("two.txt", b"two"),
        ("latin.flac", recording(1)),
        ("latin.txt", b"\xe8aj"),
        ("noise.flac", b"noise"),
        ("noise.txt", b"noise"),
        ("json.flac", recording(1)),
        ("json.json", json.dumps({"sentence": "js", "speaker": "ana", "duration": len(wave(1)) / RATE_HZ}).encode()),
    ]
    shard = write_tar(tmp_path / "made" / "shard.tar", members)
    found = Cache(str(tmp_path / "prepared"), None).prepare(f"webdataset:{shard}", max_bad_fraction=0.9)
    assert found.index["id"].to_pylist() == ["good", "json"]
    assert found.index["text"].to_pylist() == [text(0), "js"]
    reasons = {row["id"]: row["reason"] for row in found.quarantine}
    assert reasons.keys() == {"../out", "silent", "text", "two", "latin", "noise"}
    for name, reason in {
        "../out": "leads out",
        "silent": "has no text",
        "text": "has no recording",
        "two": "several recordings",
        "latin": "not UTF-8",
    }.items():
        assert reason in reasons[name]
    assert not (tmp_path / "out.flac").exists()


@pytest.mark.parametrize(("suffix", "mode"), [(".TAR", "w"), (".tgz", "w:gz"), (".Tar.GZ", "w:gz")])
def test_shards_may_have_each_ending_of_a_tar_in_any_case(tmp_path: Path, suffix: str, mode: str) -> None:
    # The folder is no archive, whatever it is called.
    folder = tmp_path / "corpus.tar"
    for number in range(2):
        members = [(f"u{number}.flac", recording(number)), (f"u{number}.txt", text(number).encode())]
        write_tar(folder / f"shard-{number}{suffix}", members, mode)
    found = Cache(str(tmp_path / "prepared"), None).prepare(f"webdataset:{folder}/shard-{{0..1}}{suffix}")
    require_clips(found, [0, 1])


@pytest.mark.parametrize("name", ["shard.wds", "shard.tar.zst", "shard"])
def test_a_shard_that_is_not_named_like_a_tar_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / name, [("u.flac", recording(0)), ("u.txt", b"text")])
    with pytest.raises(DataError, match=rf"data\.train: .*{name}: its extension is none of \.tar, \.tar\.gz, \.tgz"):
        Cache(str(tmp_path / "prepared"), None).prepare(f"webdataset:{tmp_path}/{name}")


def test_keys_that_shards_count_anew_are_told_apart(tmp_path: Path) -> None:
    for shard in ("a", "b"):
        members = [("0.flac", recording(ord(shard))), ("0.txt", shard.encode())]
        write_tar(tmp_path / f"{shard}.tar", members)
    found = Cache(str(tmp_path / "prepared"), None).prepare(f"webdataset:{tmp_path}/{{a,b}}.tar")
    assert found.index["id"].to_pylist() == ["a/0", "b/0"]


def test_a_sample_whose_files_are_there_twice_is_not_guessed(tmp_path: Path) -> None:
    good, other = recording(0), recording(1)
    members = [
        *(("twice.flac", good), ("twice.txt", b"one"), ("twice.flac", other), ("twice.txt", b"two")),
        *(("case.FLAC", good), ("case.flac", other), ("case.txt", b"text")),
        *(("good.flac", good), ("good.txt", text(0).encode())),
    ]
    shard = write_tar(tmp_path / "shard.tar", members)
    found = Cache(str(tmp_path / "prepared"), None).prepare(f"webdataset:{shard}", max_bad_fraction=0.9)
    assert found.index["id"].to_pylist() == ["good"]
    reasons = {row["id"]: row["reason"] for row in found.quarantine}
    assert "several times" in reasons["twice"] and "several spellings" in reasons["case"]


@pytest.mark.parametrize(
    ("option", "texts"),
    [
        ("", {"a": "right", "b": "draft", "c": "c"}),
        ("?text=txt", {"a": "right", "c": "c"}),
        ("?text=.TXT", {"a": "right", "c": "c"}),
        ("?text=json", {"a": "draft", "b": "draft"}),
        ("?text=json.other", {"a": "other"}),
        ("?text=transcript.txt", {"c": "long"}),
    ],
)
def test_the_text_is_the_one_that_is_named(tmp_path: Path, option: str, texts: dict[str, str]) -> None:
    members = [(f"{name}.flac", recording(0)) for name in "abc"]
    members += [
        ("a.txt", b"right"),
        ("a.json", b'{"text": "draft", "other": "other"}'),
        ("b.json", b'{"text": "draft"}'),
    ]
    members += [("c.txt", b"c"), ("c.transcript.txt", b"long")]
    shard = write_tar(tmp_path / "shard.tar", members)
    found = Cache(str(tmp_path / "prepared"), None).prepare(f"webdataset:{shard}{option}", max_bad_fraction=0.9)
    assert dict(zip(found.index["id"].to_pylist(), found.index["text"].to_pylist(), strict=True)) == texts


def test_an_archive_that_is_replaced_after_it_was_listed_is_noticed(tmp_path: Path) -> None:
    def members(order: str) -> list[tuple[str, bytes]]:
        return [
            each for name in order for each in ((f"{name}.wav", recording(ord(name), "WAV")), (f"{name}.txt", b"t"))
        ]

    shard = write_tar(tmp_path / "shard.tar", members("ah"))
    data = DataPart(train=f"webdataset:{shard}", validation="/nowhere.csv")
    (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",))
    write_tar(shard, members("ha"))
    with pytest.raises(StorageError, match="it was replaced since its rows were listed"):
        list(source.reader.read(source.table.to_pylist()))


@pytest.mark.integration
def test_what_a_web_server_has_is_prepared_again_when_it_changes(tmp_path: Path) -> None:
    folder, cache = tmp_path / "made", Cache(str(tmp_path / "prepared"), None)
    write_tar(folder / "corpus.tar", [("a.flac", recording(0)), ("a.txt", b"a")])
    (folder / "one.flac").write_bytes(recording(0))
    with web_server(folder) as url:
        (folder / "train.csv").write_text(f"path,text\n{url}/one.flac,one\n")
        wheres = (f"webdataset:{url}/corpus.tar", f"{url}/train.csv", str(folder / "train.csv"))
        before = [cache.prepare(where).key for where in wheres]
        assert [cache.prepare(where, runner=never).key for where in wheres] == before
        write_tar(folder / "corpus.tar", [("a.flac", recording(7)), ("a.txt", b"a")])
        (folder / "one.flac").write_bytes(recording(7))
        assert not {cache.prepare(where).key for where in wheres} & set(before)


def test_a_kept_index_that_is_damaged_or_has_lost_its_points_is_made_again(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "corpus.tar.gz", manifest_members(COUNT), "w:gz")
    cache = Cache(str(tmp_path / "prepared"), None)
    cache_of_rows = open_storage(str(tmp_path / "prepared"))
    data = DataPart(train=f"{archive}/train.tsv", validation="/nowhere.csv")
    for pattern in ("*.points", "*.parquet", "*.points", "*.parquet"):
        for number, path in enumerate((tmp_path / "prepared" / "archives").glob(pattern)):
            path.write_bytes(b"")
            if number:
                path.unlink()
        options = StorageOptions()
        open_sources(data, storage_options=options, splits=("train",), fingerprint_cache=cache_of_rows)
    require_clips(cache.prepare(f"{archive}/train.tsv"), list(range(COUNT)))


@pytest.mark.parametrize(("suffix", "mode"), [(".tar", "w"), (".TGZ", "w:gz")])
def test_a_tar_of_nemo_is_known_by_its_number_and_further_segments_by_their_names(
    tmp_path: Path, suffix: str, mode: str
) -> None:
    for number in (1, 2):
        write_tar(tmp_path / f"audio_{number}{suffix}", [("c.wav", recording(number, "WAV"))], mode)
    rows = [
        {"audio_filepath": "c.wav", "text": "one", "shard_id": 1},
        {"audio_filepath": "c-sub1.wav", "text": "two", "shard_id": 2},
    ]
    for number, row in enumerate(rows, 1):
        (tmp_path / f"manifest_{number}.json").write_text(json.dumps(row))
    cache = Cache(str(tmp_path / "prepared"), None)
    found = cache.prepare(f"nemo:{tmp_path}/manifest__OP_1..2_CL_.json?tars=audio__OP_1..2_CL_{suffix}")
    reader = ClipReader(found, cache_bytes=2**30)
    assert [np.array_equal(reader.read(number), wave(number + 1)) for number in range(2)] == [True, True]
    (tmp_path / "manifest_1.json").write_text(json.dumps({**rows[0], "shard_id": 3}))
    with pytest.raises(DataError, match="'shard_id' is 3, and the tars are 1 to 2"):
        cache.prepare(f"nemo:{tmp_path}/manifest_1.json?tars=audio__OP_1..2_CL_{suffix}")


def test_recordings_of_one_name_in_several_tars_of_nemo_are_told_apart(tmp_path: Path) -> None:
    for number in range(2):
        write_tar(tmp_path / f"audio_{number}.tar", [("c.wav", recording(number, "WAV"))])
    rows = [{"audio_filepath": "c.wav", "text": text(number), "shard_id": number} for number in range(2)]
    (tmp_path / "manifest.json").write_text("\n".join(map(json.dumps, rows)))
    for number, row in enumerate(rows):
        (tmp_path / f"manifest_{number}.json").write_text(json.dumps({**row, "shard_id": None}))
    cache = Cache(str(tmp_path / "prepared"), None)
    for name in ("manifest.json", "manifest__OP_0..1_CL_.json"):
        found = cache.prepare(f"nemo:{tmp_path}/{name}?tars=audio__OP_0..1_CL_.tar")
        require_clips(found, [0, 1], ids=["audio_0/c", "audio_1/c"])
    # One row twice is none of these.
    (tmp_path / "manifest.json").write_text("\n".join(map(json.dumps, [*rows, rows[0]])))
    with pytest.raises(DataError, match=r"1 ids occur more than once \('audio_0/c'\)"):
        cache.prepare(f"nemo:{tmp_path}/manifest.json?tars=audio__OP_0..1_CL_.tar")


def test_a_tarred_set_of_nemo_is_the_same_wherever_it_lies_and_another_where_a_row_is_of_another_tar(
    tmp_path: Path,
) -> None:
    def written(folder: Path, shard: int) -> str:
        """Both tars have a c.wav, of which the manifest means one; from each there is another row."""
        for number in range(2):
            members = [("c.wav", recording(number, "WAV")), (f"{number}.wav", recording(2 + number, "WAV"))]
            write_tar(folder / f"audio_{number}.tar", members)
        rows = [{"audio_filepath": f"{number}.wav", "text": "a", "shard_id": number} for number in range(2)]
        rows.append({"audio_filepath": "c.wav", "text": "c", "shard_id": shard})
        (folder / "manifest.json").write_text("\n".join(map(json.dumps, rows)))
        return f"nemo:{folder}/manifest.json?tars={folder}/audio__OP_0..1_CL_.tar"

    cache = Cache(str(tmp_path / "prepared"), None)
    first = cache.prepare(written(tmp_path / "first", 0))
    assert cache.prepare(written(tmp_path / "moved", 0), runner=never).key == first.key
    assert cache.prepare(written(tmp_path / "other", 1)).key != first.key


def test_a_manifest_s_recording_that_is_not_in_the_archive_is_quarantined(tmp_path: Path) -> None:
    members = manifest_members(COUNT)
    archive = write_tar(tmp_path / "corpus.tar", [each for each in members if each[0] != "clips/3.flac"])
    found = Cache(str(tmp_path / "prepared"), None).prepare(f"{archive}/train.tsv", max_bad_fraction=0.5)
    assert [row["reason"] for row in found.quarantine] == ["no such member of the archive"]
    assert len(found.index) == COUNT - 1


def test_an_archive_that_has_changed_is_prepared_again(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "prepared"), None)
    archive = write_tar(tmp_path / "corpus.tar", manifest_members(COUNT))
    first = cache.prepare(f"{archive}/train.tsv")
    write_tar(archive, manifest_members(COUNT - 1))
    assert cache.prepare(f"{archive}/train.tsv").key != first.key
    # The same bytes elsewhere are the same set.
    write_tar(tmp_path / "moved" / "corpus.tar", manifest_members(COUNT))
    assert cache.prepare(f"{tmp_path}/moved/corpus.tar/train.tsv", runner=never).key == first.key


@pytest.mark.parametrize(("suffix", "mode"), [(".tar", "w"), (".tar.gz", "w:gz")])
def test_an_archive_of_the_same_size_and_time_is_read_again(tmp_path: Path, suffix: str, mode: str) -> None:
    def written(texts: str) -> Path:
        members = [
            (f"{name}.{end}", data) for name in texts for end, data in (("wav", recording(0, "WAV")), ("txt", b"t"))
        ]
        archive = write_tar(tmp_path / f"corpus{suffix}", members, mode)
        with archive.open("ab") as file:
            # Zeros may follow an archive, and gzip.
            file.write(bytes(100_000 - archive.stat().st_size))
        os.utime(archive, (1, 1))
        return archive

    options, cache = StorageOptions(), open_storage(str(tmp_path / "prepared"))
    before = open_index(str(written("ab")), options, cache)
    after = open_index(str(written("ba")), options, cache)
    assert (before.state.size_bytes, sorted(before.members)) == (after.state.size_bytes, sorted(after.members))
    assert list(before.members) == ["a.wav", "a.txt", "b.wav", "b.txt"] != list(after.members)


@pytest.mark.parametrize("part", [0.3, 0.9, 0.999])
def test_a_cut_or_damaged_compressed_archive_is_refused(tmp_path: Path, part: float) -> None:
    data = gzip.compress(write_tar(tmp_path / "whole.tar", manifest_members(COUNT)).read_bytes())
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(data[: int(len(data) * part)])
    cache = Cache(str(tmp_path / "prepared"), None)
    with pytest.raises(DataError, match=r"cut\.tar\.gz: the archive .*(truncated|damaged)"):
        cache.prepare(f"{cut}/train.tsv")
    damaged = bytearray(data)
    damaged[int(len(data) * part)] ^= 1
    cut.write_bytes(bytes(damaged))
    with pytest.raises(DataError, match="the archive is damaged"):
        cache.prepare(f"{cut}/train.tsv")


def test_a_folder_may_be_named_like_an_archive(tmp_path: Path) -> None:
    for name, content in manifest_members(COUNT):
        path = tmp_path / "corpus.tar" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    require_clips(
        Cache(str(tmp_path / "prepared"), None).prepare(f"{tmp_path}/corpus.tar/train.tsv"), list(range(COUNT))
    )


def test_a_server_without_ranges_is_named_and_a_file_of_it_is_read(tmp_path: Path) -> None:
    write_tar(tmp_path / "made" / "corpus.tar", manifest_members(COUNT))
    (tmp_path / "made" / "one.flac").write_bytes(recording(0))
    cache = Cache(str(tmp_path / "prepared"), None)
    with web_server(tmp_path / "made", knows_ranges=False) as url:
        with pytest.raises(
            StorageError, match=r"cannot read http://.*: its server does not support range requests; down"
        ):
            cache.prepare(f"{url}/corpus.tar/train.tsv")
        (tmp_path / "train.csv").write_text(f"path,text\n{url}/one.flac,{text(0)}\n")
        require_clips(cache.prepare(tmp_path / "train.csv"), [0])
        (tmp_path / "train.csv").write_text(f"path,text\n{url}/one.flac,{text(0)}\n{url}/none.flac,none\n")
        found = cache.prepare(tmp_path / "train.csv", max_bad_fraction=0.5)
        assert [row["reason"] for row in found.quarantine] == ["no such file"]
