from pathlib import Path

import pytest

from tests.trainers.data.sources.archives.made_archives import write_tar
from trainers.config.storage_location import StorageOptions
from trainers.data.sources.archives.open_archive import open_archive
from trainers.data.sources.located_files import describe, is_file, read_location, read_range

OPTIONS = StorageOptions()


def test_a_path_into_a_job_s_package_is_read_where_this_node_has_unpacked_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, node = (tmp_path / name / "working_dir_files" / "_ray_pkg_0a" for name in ("head", "node"))
    path = write_tar(node / "clips.tar.gz", [("a.wav", b"a recording")], "w:gz")
    there = str(head / "clips.tar.gz")
    assert not is_file(there, OPTIONS)
    monkeypatch.setenv("PYTHONPATH", f"/opt/code:{node}")
    content = path.read_bytes()
    assert is_file(there, OPTIONS)
    assert read_location(there, OPTIONS) == content
    assert read_range(there, 2, 5, OPTIONS) == content[2:7]
    assert describe(there, OPTIONS).size_bytes == len(content)
    read_at, _ = open_archive(there, len(content), OPTIONS)
    assert read_at(512, 11) == b"a recording"
    other = str(tmp_path / "head" / "working_dir_files" / "_ray_pkg_0b" / "clips.tar.gz")
    assert not is_file(other, OPTIONS), "of another package"


@pytest.mark.parametrize("url", ["s3://bucket/clips/", "s3://bucket/", "s3://bucket"])
def test_a_folder_of_a_bucket_is_no_file(url: str) -> None:
    for read in (read_location, describe):
        with pytest.raises(FileNotFoundError):
            read(url, OPTIONS)
    assert not is_file(url, OPTIONS)
