from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.trainers.data.preparing import Cache
from tests.trainers.synthetic import speechlike, write_recording, write_rows
from trainers.config.parts.data_part import DataPart


def test_a_manifest_that_has_travelled_is_prepared_from_where_its_recordings_are_now(
    folder: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_recording(tmp_path / "now" / "a.wav", speechlike(0.5))
    write_recording(tmp_path / "deep" / "b.wav", speechlike(0.6))
    rows = [("/home/me/speech/a.wav", "one"), ("/home/me/speech/deep/b.wav", "two")]
    manifest = write_rows(tmp_path / "train.csv", rows)
    prefixes = {
        "/home/me/speech/": f"{tmp_path}/now/",
        "/home/me/speech/deep/": f"{tmp_path}/deep/",
        "/never/": "/there/",
    }
    found = folder.prepare(manifest, path_prefix=prefixes)
    assert (found.summary.prepared, found.summary.quarantined) == (2, 0)
    # What a manifest says is its id still.
    assert found.index["id"].to_pylist() == [path for path, _ in rows]
    assert "no recording's path begins with /never/" in capsys.readouterr().out


@pytest.mark.parametrize("prefixes", [{"speech/": "/x/"}, {"/x": "/y/"}, {"/x/": "/y"}, {"/x/": "hdfs://b/"}])
def test_a_prefix_is_a_whole_folder(prefixes: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=r"ends with /|hdfs:// is not supported"):
        DataPart(train="t.csv", validation="v.csv", path_prefix=prefixes)
