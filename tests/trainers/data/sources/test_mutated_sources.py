"""Mutated recordings, manifests and archives: each row is prepared or quarantined with a reason, or all are refused."""

import random
import resource
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.trainers.data.preparing import Cache
from tests.trainers.data.sources.archives.made_archives import recording, wave, write_tar
from tests.trainers.data.sources.mutations import OF_FILES, OF_TEXTS, cut
from trainers.data.prepared_set import ClipReader, PreparedSet
from trainers.errors import DataError

KINDS = ("FLAC", "WAV", "OGG", "MP3", "AIFF")
# Of which every sample is checked: what was changed at all must not come back as other samples.
CHECKED = ("FLAC",)
RECORDINGS = 20
CAMPAIGNS = [pytest.param(4, id="200"), pytest.param(200, id="10000", marks=pytest.mark.long)]
MOST_MEMORY_BYTES = 2**30


class Clip(NamedTuple):
    """A recording of a campaign, before and after."""

    number: int
    kind: str
    is_cut: bool
    data: bytes


def mutated_clip(draw: random.Random, number: int) -> Clip:
    kind, mutation = draw.choice(KINDS), draw.choice(OF_FILES)
    data = recording(number, kind)
    damaged = mutation(draw, data)
    return Clip(number, kind, mutation is cut, damaged)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture
def bounded() -> object:
    """Memory at the end is little more than it was: claims of gigabytes are not believed."""
    before = peak_bytes()
    yield
    assert peak_bytes() - before < MOST_MEMORY_BYTES


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("rounds", CAMPAIGNS)
def test_a_mutated_recording_is_prepared_or_quarantined_and_never_half_of_one(
    rounds: int, tmp_path: Path, bounded: None
) -> None:
    draw = random.Random(20)
    for number in range(rounds):
        folder = tmp_path / str(number)
        clips = [mutated_clip(draw, each) for each in range(RECORDINGS)]
        for clip in clips:
            (folder / f"{clip.number}.{clip.kind.lower()}").parent.mkdir(exist_ok=True)
            (folder / f"{clip.number}.{clip.kind.lower()}").write_bytes(clip.data)
        rows = "".join(f"{clip.number}.{clip.kind.lower()},text\n" for clip in clips)
        (folder / "train.csv").write_text(f"path,text\n{rows}")
        require_all_accounted_for(clips, folder)


def require_all_accounted_for(clips: list[Clip], folder: Path) -> None:
    names = [f"{clip.number}.{clip.kind.lower()}" for clip in clips]
    try:
        found = Cache(str(folder / "prepared"), None).prepare(folder / "train.csv", max_bad_fraction=1.0)
    except DataError as error:
        assert f"{len(clips)} of {len(clips)} recordings cannot be decoded" in str(error)
        return
    prepared = found.index["id"].to_pylist()
    assert sorted([*prepared, *(row["id"] for row in found.quarantine)]) == sorted(names)
    assert all(row["reason"] for row in found.quarantine)
    reader = ClipReader(found, cache_bytes=2**30)
    for position, name in enumerate(prepared):
        clip = clips[names.index(name)]
        if clip.kind in CHECKED:
            assert np.array_equal(reader.read(position), wave(clip.number)), name
        elif clip.is_cut:
            assert len(reader.read(position)) >= len(wave(clip.number)), name


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("rounds", CAMPAIGNS)
@pytest.mark.integration
def test_a_mutated_manifest_is_refused_by_its_name_or_each_of_its_rows_is_accounted_for(
    rounds: int, tmp_path: Path, bounded: None
) -> None:
    draw = random.Random(21)
    (tmp_path / "a.flac").write_bytes(recording(0))
    rows = [("a.flac", f"reč {number} i još") for number in range(5)]
    manifests = {
        "csv": "path,text\n" + "".join(f"{path},{text}\n" for path, text in rows),
        "tsv": "path\ttext\n" + "".join(f"{path}\t{text}\n" for path, text in rows),
        "jsonl": "".join(f'{{"path": "{path}", "text": "{text}"}}\n' for path, text in rows),
    }
    for number in range(rounds * RECORDINGS):
        kind = draw.choice(list(manifests))
        path = tmp_path / f"{number}.{kind}"
        path.write_bytes(draw.choice(OF_TEXTS)(draw, manifests[kind].encode()))
        require_refused_by_name_or_complete(path, tmp_path / "prepared")


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("rounds", CAMPAIGNS)
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
@pytest.mark.integration
def test_a_mutated_archive_is_refused_by_its_name_or_each_sample_is_accounted_for(
    rounds: int, suffix: str, tmp_path: Path, bounded: None
) -> None:
    draw = random.Random(22)
    members = [
        member
        for number in range(5)
        for member in ((f"u{number}.flac", recording(number)), (f"u{number}.txt", b"text"))
    ]
    whole = write_tar(tmp_path / f"whole{suffix}", members, "w:gz" if suffix == ".tar.gz" else "w").read_bytes()
    for number in range(rounds * RECORDINGS // 2):
        path = tmp_path / f"shard{number}{suffix}"
        path.write_bytes(draw.choice(OF_FILES)(draw, whole))
        found = require_refused_by_name_or_complete(path, tmp_path / "prepared", "webdataset:")
        if found is None:
            continue
        reader = ClipReader(found, cache_bytes=2**30)
        for position, name in enumerate(found.index["id"].to_pylist()):
            # FLAC has checksums: what comes back is a recording that was put in, whatever its name became.
            assert any(np.array_equal(reader.read(position), wave(each)) for each in range(5)), (path, name)


def require_refused_by_name_or_complete(path: Path, cache: Path, kind: str = "") -> PreparedSet | None:
    try:
        found = Cache(str(cache), None).prepare(f"{kind}{path}", max_bad_fraction=1.0)
    except DataError as error:
        assert path.name in str(error)
        return None
    assert found.summary.rows == found.summary.prepared + found.summary.quarantined > 0
    assert len(found.index) == found.summary.prepared and len(found.quarantine) == found.summary.quarantined
    assert all(row["reason"] for row in found.quarantine)
    return found
