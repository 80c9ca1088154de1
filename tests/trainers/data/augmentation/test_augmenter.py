"""A clip's augmentation is a function of seed, position and epoch, stage by stage."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainers.data.sources.archives.made_archives import write_tar
from tests.trainers.synthetic import config, speechlike, write_recording
from trainers.config.storage_location import DEFAULT_STORAGE_OPTIONS, StorageOptions
from trainers.data import augmentation
from trainers.data.augmentation import Augmenter, RecordingPool, Speeds
from trainers.data.sources import recording_readers
from trainers.data.sources.located_files import read_location
from trainers.data.sources.manifest_source import locate_mixed
from trainers.errors import DataError
from trainers.storage import open_storage

CLIP = speechlike(1.0, seed=3)
NOTHING: dict[str, Any] = {"speeds": None, "noise": None, "rirs": None}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Three recordings, without transcripts; one at another rate."""
    for number, rate_hz in enumerate((16_000, 16_000, 44_100)):
        write_recording(tmp_path / f"{number}.wav", speechlike(0.4 + number, seed=number), rate_hz)
    path = tmp_path / "noise.csv"
    path.write_text("path\n" + "".join(f"{number}.wav\n" for number in range(3)))
    return path


def pool_of(manifest: Path | str, options: StorageOptions = DEFAULT_STORAGE_OPTIONS) -> RecordingPool:
    field, data = "augment.noise_manifest", config().data
    return RecordingPool(field, locate_mixed(field, str(manifest), data, options, None))


def test_a_segment_of_a_recording_is_mixed_in(manifest: Path) -> None:
    manifest.write_text("path,offset,duration\n1.wav,0.5,0.25\n")
    drawn = pool_of(manifest).draw(np.random.default_rng(0))
    assert np.array_equal(drawn, speechlike(1.4, seed=1)[8000:12000] / np.float32(32768))


def everything(manifest: Path, seed: int = 1) -> Augmenter:
    part = config(
        {
            "augment.speed_range": [0.8, 1.2],
            "augment.gain_db": [-6, 6],
            "augment.noise_manifest": str(manifest),
            "augment.rir_manifest": str(manifest),
            "augment.time_masks": 2,
        }
    ).augment
    speeds = Speeds(part, seed, np.full(10, 1.0), 3.0)
    return Augmenter(part, seed, speeds=speeds, noise=pool_of(manifest), rirs=pool_of(manifest))


def test_it_is_the_same_in_another_process_in_any_order(manifest: Path) -> None:
    there = [(position, epoch) for epoch in range(3) for position in range(10)]
    augmenter = everything(manifest)
    copy = pickle.loads(pickle.dumps(everything(manifest)))
    forward = {each: augmenter.change(CLIP, *each) for each in there}
    backward = {each: copy.change(CLIP, *each) for each in reversed(there)}
    for each in there:
        assert np.array_equal(forward[each], backward[each])
        assert augmenter.masks(len(CLIP), *each) == copy.masks(len(CLIP), *each)
    assert len({clip.tobytes() for clip in forward.values()}) == len(there)
    assert not np.array_equal(everything(manifest, seed=2).change(CLIP, 0, 0), forward[0, 0])


def test_a_stage_that_is_switched_on_leaves_the_draws_of_others(manifest: Path) -> None:
    gain = config({"augment.gain_db": [-6, -1]}).augment
    loud = Augmenter(gain, 1, **NOTHING).change(CLIP, 4, 2)
    speed = config(
        {"augment.gain_db": [-6, -1], "augment.rir_manifest": "/x.csv", "augment.rir_probability": 0}
    ).augment
    both = Augmenter(speed, 1, speeds=None, noise=None, rirs=pool_of(manifest)).change(CLIP, 4, 2)
    assert np.array_equal(loud, both)


def test_a_gain_is_within_its_range_and_full_scale_is_clipped() -> None:
    quiet = Augmenter(config({"augment.gain_db": [-6.0, -6.0]}).augment, 1, **NOTHING).change(CLIP, 0, 0)
    assert np.abs(quiet - CLIP * 10 ** (-6 / 20)).max() <= 0.5 + 1e-3
    loud = Augmenter(config({"augment.gain_db": [60.0, 60.0]}).augment, 1, **NOTHING).change(CLIP, 0, 0)
    assert (loud.min(), loud.max()) == (-32_768, 32_767)


@pytest.mark.parametrize(("probability", "changed"), [(0.0, 0), (0.4, 80), (1.0, 200)])
def test_noise_and_rooms_are_for_their_fraction_of_clips(manifest: Path, probability: float, changed: int) -> None:
    changes = {"augment.noise_probability": probability, "augment.rir_probability": probability}
    part = config({"augment.noise_manifest": "/noise.csv", "augment.rir_manifest": "/rirs.csv", **changes}).augment
    for noise, rirs in ((pool_of(manifest), None), (None, pool_of(manifest))):
        augmenter = Augmenter(part, 1, speeds=None, noise=noise, rirs=rirs)
        count = sum(not np.array_equal(augmenter.change(CLIP, position, 0), CLIP) for position in range(200))
        assert count == pytest.approx(changed, abs=25 if 0 < probability < 1 else 0)


def test_without_masks_none_are_drawn() -> None:
    assert Augmenter(config({"augment.gain_db": [-6.0, -6.0]}).augment, 1, **NOTHING).masks(16_000, 0, 0) is None


def test_a_recording_is_read_once_while_the_bound_holds(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(path: str, *args: Any, **more: Any) -> bytes:
        read.append(path)
        return read_location(path, *args, **more)

    monkeypatch.setattr(recording_readers, "read_location", counted)
    pool, generator = pool_of(manifest), np.random.default_rng(0)
    read.clear()
    assert {len(pool.draw(generator)) for _ in range(50)} == {6400, 13_932, 22_400}, "all, at 16 kHz"
    assert len(read) == 3
    monkeypatch.setattr(augmentation, "KEPT_BYTES", 1)
    small = pool_of(manifest)
    for _ in range(50):
        small.draw(generator)
    assert len(read) > 20, "memory is bounded"


def test_manifest_and_recordings_may_be_in_a_bucket(manifest: Path, s3_bucket: str, s3_endpoint: str) -> None:
    options = StorageOptions(s3_endpoint)
    storage = open_storage(f"{s3_bucket}/noise", options)
    for path in manifest.parent.iterdir():
        storage.write_bytes(path.name, path.read_bytes())
    require_equal_draws(pool_of(f"{s3_bucket}/noise/noise.csv", options), pool_of(manifest))
    with pytest.raises(DataError, match=r"s3://.*/gone\.csv: no such file"):
        pool_of(f"{s3_bucket}/noise/gone.csv", options)


@pytest.mark.parametrize(("suffix", "mode"), [(".tar", "w"), (".tar.gz", "w:gz")])
def test_manifest_and_recordings_may_be_in_an_archive(manifest: Path, suffix: str, mode: str) -> None:
    members = [(path.name, path.read_bytes()) for path in sorted(manifest.parent.iterdir())]
    archive = write_tar(manifest.parent / f"noise{suffix}", members, mode)
    require_equal_draws(pickle.loads(pickle.dumps(pool_of(f"{archive}/noise.csv"))), pool_of(manifest))


def require_equal_draws(pool: RecordingPool, other: RecordingPool) -> None:
    first, second = (np.random.default_rng(0) for _ in range(2))
    for _ in range(6):
        assert np.array_equal(pool.draw(first), other.draw(second))


def test_what_is_wrong_with_a_manifest_is_said_by_its_field(manifest: Path) -> None:
    with pytest.raises(
        DataError, match=r"augment\.noise_manifest: .*missing\.csv: no such file; give the path of a manifest"
    ):
        pool_of(manifest.with_name("missing.csv"))
    (manifest.parent / "1.wav").write_bytes(b"no audio")
    pool, generator = pool_of(manifest), np.random.default_rng(0)
    with pytest.raises(DataError, match=r"augment\.noise_manifest: .*1\.wav: .*take it out of the manifest"):
        for _ in range(50):
            pool.draw(generator)
    manifest.write_text("file\n0.wav\n")
    with pytest.raises(DataError, match=r"augment\.noise_manifest: .*no column 'path'"):
        pool_of(manifest)
