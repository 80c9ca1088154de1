"""Downloads over TLS: complete, or not there."""

import hashlib
from pathlib import Path

import pytest

from tests.web import WebServer, serving
from trainers.errors import ConfigError, StorageError
from trainers.models.sources.source_reader import KnownDownload, download

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def get(url: str, folder: Path, *, sha256: str | None = None, known: KnownDownload | None = None) -> bytes:
    """What is downloaded; nothing but it is left."""
    folder.mkdir(exist_ok=True)
    download(url, folder / "file", "the file", sha256=sha256, known=known)
    assert [path.name for path in folder.iterdir()] == ["file"]
    return (folder / "file").read_bytes()


def fails(url: str, folder: Path, kind: type[Exception], message: str, *, sha256: str | None = None) -> None:
    """It must fail so, and leave no file that could be taken for whole."""
    folder.mkdir(exist_ok=True)
    with pytest.raises(kind, match=message):
        download(url, folder / "file", "the file", sha256=sha256)
    assert not (folder / "file").exists()


def test_one_that_is_cut_goes_on_where_it_was_cut(web: WebServer, tmp_path: Path) -> None:
    url = web.publish("/a", CONTENT, cuts=[1000, 500_000])
    assert get(url, tmp_path / "to") == CONTENT
    assert web.gets("/a") == [None, "bytes=1000-", "bytes=501000-"]


def test_one_that_has_changed_meanwhile_begins_anew(web: WebServer, tmp_path: Path) -> None:
    url = web.publish("/a", CONTENT, cuts=[1000])
    other = CONTENT[::-1]

    class Changes(list[int]):
        """Cuts; with the first, the file becomes another."""

        def pop(self, index: int = -1) -> int:  # type: ignore[override]
            web.publish("/a", other)
            return 1000

    web.pages["/a"].cuts = Changes([1])
    assert get(url, tmp_path / "to") == other
    assert web.gets("/a") == [None, "bytes=1000-"]


@pytest.mark.parametrize("change", [{"ranges": False}, {"headers": {}}], ids=["no ranges", "no ETag"])
def test_a_server_that_gives_no_parts_is_asked_for_all_of_it(
    web: WebServer, tmp_path: Path, change: dict[str, object]
) -> None:
    url = web.publish("/a", CONTENT, cuts=[1000], **change)
    assert get(url, tmp_path / "to") == CONTENT
    assert len(web.gets("/a")) == 2


def test_one_that_is_always_cut_is_not_there(web: WebServer, tmp_path: Path) -> None:
    url = web.publish("/a", CONTENT, cuts=[10] * 10)
    fails(url, tmp_path / "to", StorageError, r"cannot download the file: .*\(tried 4 times\)")


def test_a_server_that_claims_more_than_it_has_is_not_believed(web: WebServer, tmp_path: Path) -> None:
    url = web.publish("/a", CONTENT, claimed_bytes=len(CONTENT) + 1)
    fails(url, tmp_path / "to", StorageError, "cannot download the file")


def test_a_server_that_claims_less_is_found_by_the_hash(web: WebServer, tmp_path: Path) -> None:
    url = web.publish("/a", CONTENT, claimed_bytes=len(CONTENT) - 1)
    fails(url, tmp_path / "to", ConfigError, "is expected", sha256=SHA256)


def test_without_a_length_only_a_hash_says_that_it_is_complete(web: WebServer, tmp_path: Path) -> None:
    url = web.publish("/a", CONTENT, claimed_bytes=None)
    fails(url, tmp_path / "to", StorageError, "the file: its server does not send its length.*#sha256=")
    assert get(url, tmp_path / "other", sha256=SHA256) == CONTENT


def test_another_file_than_the_hash_is_of_is_refused(web: WebServer, tmp_path: Path) -> None:
    url = web.publish("/a", CONTENT)
    fails(url, tmp_path / "to", ConfigError, f"its SHA-256 is {SHA256}, but #sha256={'0' * 64}", sha256="0" * 64)


def test_what_is_known_is_not_downloaded_again(web: WebServer, tmp_path: Path) -> None:
    url = web.publish("/a", CONTENT)
    known = download(url, tmp_path / "first", "the file", sha256=None)
    assert known is not None
    known.write(tmp_path / "known.json")
    again = KnownDownload.read(tmp_path / "known.json")
    assert download(url, tmp_path / "second", "the file", sha256=None, known=again) is None
    assert not (tmp_path / "second").exists()
    web.publish("/a", CONTENT[1:])
    assert download(url, tmp_path / "second", "the file", sha256=None, known=again) is not None


@pytest.mark.parametrize(("status", "kind"), [(503, StorageError), (429, StorageError), (404, ConfigError)])
def test_what_may_pass_is_tried_again(web: WebServer, tmp_path: Path, status: int, kind: type[Exception]) -> None:
    url = web.publish("/a", CONTENT, statuses=[status] * 10)
    message = "the file: no file is there" if kind is ConfigError else f"its server responds with status {status}"
    fails(url, tmp_path / "to", kind, message)
    assert len(web.gets("/a")) == (1 if kind is ConfigError else 4)
    web.pages["/a"].statuses = [503]
    assert get(url, tmp_path / "other") == CONTENT


def test_a_redirect_is_followed_over_tls_only(web: WebServer, tmp_path: Path) -> None:
    url = web.publish("/a", CONTENT)
    web.publish("/there", b"", headers={"Location": url, "Status": "302"})
    assert get(f"{web.url}/there", tmp_path / "to") == CONTENT
    with serving() as plain:
        target = plain.publish("/a", CONTENT)
        web.publish("/there", b"", headers={"Location": target, "Status": "302"})
        fails(f"{web.url}/there", tmp_path / "other", ConfigError, "is redirected to it over http:")
        assert plain.requests == []


def test_a_certificate_that_nobody_trusts_is_not_tried_again(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    fails(web.publish("/a", CONTENT), tmp_path / "to", StorageError, "CERTIFICATE_VERIFY_FAILED.*set SSL_CERT_FILE")
    assert web.requests == []


def test_a_disk_without_room_is_named_before_anything_is_written(web: WebServer, tmp_path: Path) -> None:
    url = web.publish("/a", CONTENT, claimed_bytes=2**60)
    fails(url, tmp_path / "to", StorageError, r"the file: needs 1073741824\.0 GiB, and the disk of .* has")
