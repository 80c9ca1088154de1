"""Manifests of noise and impulse responses, before a run starts."""

from pathlib import Path

import pytest

from tests.trainers.data.sources.archives.made_archives import write_tar
from tests.trainers.inspection.checking import said, subject_of, the_one
from tests.trainers.synthetic import speechlike, write_recording
from trainers.inspection.data_checks import check_augmentation

FIELDS = ["augment.noise_manifest", "augment.rir_manifest"]


def write_noise(folder: Path, names: list[str]) -> str:
    path = folder / "noise.jsonl"
    path.write_text("".join(f'{{"path": "{name}"}}\n' for name in names))
    return str(path)


def test_none_is_fine(tmp_path: Path) -> None:
    assert the_one(check_augmentation, subject_of(tmp_path), "ok") == "no recordings are mixed into clips"


@pytest.mark.parametrize("field", FIELDS)
class TestManifest:
    def test_a_sound_one(self, tmp_path: Path, field: str) -> None:
        write_recording(tmp_path / "hum.wav", speechlike(0.3))
        location = write_noise(tmp_path, ["hum.wav"])
        found = said(check_augmentation, subject_of(tmp_path, {field: location}))
        assert found == [("ok", f"{field}: 1 recording in {location} can be read")]

    def test_recordings_that_an_archive_has_and_has_not(self, tmp_path: Path, field: str) -> None:
        hum = write_recording(tmp_path / "hum.wav", speechlike(0.3)).read_bytes()
        manifest = b'{"path": "hum.wav"}\n{"path": "gone.wav"}\n'
        write_tar(tmp_path / "noise.tar", [("noise.jsonl", manifest), ("hum.wav", hum)])
        location = f"{tmp_path}/noise.tar/noise.jsonl"
        text = the_one(check_augmentation, subject_of(tmp_path, {field: location}), "error")
        assert text.startswith(f"{field}: 1 of 2 recordings in {location} cannot be read")
        assert "gone.wav: no such member of the archive" in text

    def test_a_missing_one(self, tmp_path: Path, field: str) -> None:
        changes = {field: "/nowhere/noise.csv"}
        text = the_one(check_augmentation, subject_of(tmp_path, changes), "error")
        assert text.startswith(f"{field}: /nowhere/noise.csv: no such file; give the path of a manifest (--set ")
        assert "the nodes may" in the_one(check_augmentation, subject_of(tmp_path, changes, elsewhere=True), "skipped")

    def test_one_without_recordings(self, tmp_path: Path, field: str) -> None:
        text = the_one(check_augmentation, subject_of(tmp_path, {field: write_noise(tmp_path, [])}), "error")
        assert text.startswith(f"{field}: ") and "no rows" in text

    def test_recordings_that_are_missing_or_damaged(self, tmp_path: Path, field: str) -> None:
        write_recording(tmp_path / "hum.wav", speechlike(0.3))
        (tmp_path / "bad.wav").write_bytes(b"\0" * 100)
        location = write_noise(tmp_path, ["hum.wav", "bad.wav", "gone.wav"])
        text = the_one(check_augmentation, subject_of(tmp_path, {field: location}), "error")
        assert text.startswith(f"{field}: 2 of 3 recordings in {location} cannot be read")
        assert "gone.wav: no such file" in text and "bad.wav: " in text

    def test_recordings_that_only_the_nodes_have(self, tmp_path: Path, field: str) -> None:
        location = write_noise(tmp_path, ["gone.wav"])
        assert "gone.wav" in the_one(
            check_augmentation, subject_of(tmp_path, {field: location}, elsewhere=True), "skipped"
        )
