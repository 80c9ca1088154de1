import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web import WebServer, serving
from trainers.errors import NoAccessError
from trainers.storage import RetryPolicy, web_files


def test_a_forked_process_has_connections_of_its_own() -> None:
    client = web_files._client()
    child = os.fork()
    if not child:
        os._exit(web_files._client() is client)
    assert os.waitpid(child, 0)[1] == 0
    assert web_files._client() is client


@pytest.fixture
def plain_web() -> Iterator[WebServer]:
    with serving() as server:
        yield server


def test_a_table_that_may_have_been_cut_is_not_read(plain_web: WebServer, tmp_path: Path) -> None:
    url = plain_web.publish("/train.csv", b"audio,text\na.wav,a\nb.wav,b\n", claimed_bytes=None, cuts=[19] * 2)
    with pytest.raises(NoAccessError, match="does not send its length"):
        web_files.read_web_file(url)
    with pytest.raises(NoAccessError, match="does not send its length"):
        web_files.download_web_file(url, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_recording_that_is_cut_goes_on_where_it_was_cut(
    plain_web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_files, "_RETRY", RetryPolicy(attempts=4, first_delay_s=0.0))
    url = plain_web.publish("/a.wav", bytes(5000), cuts=[1000, 2000])
    version = web_files.download_web_file(url, tmp_path / "a.wav")
    assert version is not None
    assert version.size_bytes == 5000
    assert (tmp_path / "a.wav").read_bytes() == bytes(5000)
    assert plain_web.gets("/a.wav") == [None, "bytes=1000-", "bytes=3000-"]
