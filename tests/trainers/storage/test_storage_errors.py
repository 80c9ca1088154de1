import errno
import hashlib
import os
import pickle
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyarrow import fs

from tests.azurite import KEY
from tests.object_stores import options_of
from tests.s3 import FAST_RETRY, FaultProxy, fails, of_every_bucket
from trainers.config.storage_location import StorageOptions
from trainers.storage import RetryPolicy, Storage, open_storage, sha256_of

# More than one part of a large S3 file.
LARGE_BYTES = 33 * 1024 * 1024


def keys(storage: Storage, prefix: str = "") -> list[str]:
    return [entry.key for entry in storage.list_files(prefix)]


@of_every_bucket
class TestFaults:
    @pytest.mark.parametrize("size_bytes", [1000, LARGE_BYTES])
    @pytest.mark.integration
    def test_uploads_and_downloads_survive_refusals_and_cut_connections(
        self, shaky_storage: Storage, fault_proxy: FaultProxy, tmp_path: Path, size_bytes: int
    ) -> None:
        source, back = tmp_path / "source", tmp_path / "back"
        source.write_bytes(os.urandom(size_bytes))
        fault_proxy.fail_next(1)
        fault_proxy.cut_next(1)
        fault_proxy.lose_answer_next(1)
        shaky_storage.upload_file(source, "model")
        fault_proxy.fail_next(1, method="HEAD")
        fault_proxy.fail_next(1, method="GET", status=500, error_code="InternalError")
        fault_proxy.cut_next(2, method="GET")
        shaky_storage.download_file("model", back)
        assert sha256_of(back) == sha256_of(source)
        assert sorted(tmp_path.iterdir()) == [back, source]

    def test_small_reads_and_writes_survive_them_too(self, shaky_storage: Storage, fault_proxy: FaultProxy) -> None:
        data = os.urandom(100_000)
        fault_proxy.cut_next(2)
        fault_proxy.fail_next(1)
        shaky_storage.write_bytes("x", data)
        fault_proxy.cut_next(2, method="GET")
        fault_proxy.fail_next(1, method="GET")
        assert hashlib.sha256(shaky_storage.read_bytes("x")).digest() == hashlib.sha256(data).digest()
        fault_proxy.fail_next(2, method="GET")
        assert keys(shaky_storage) == ["x"]

    def test_a_line_whose_answer_is_lost_is_appended_once(
        self, shaky_storage: Storage, fault_proxy: FaultProxy
    ) -> None:
        shaky_storage.append_line("log", "1")
        fault_proxy.lose_answer_next(2)
        shaky_storage.append_line("log", "2")
        assert shaky_storage.read_bytes("log") == b"1\n2\n"

    def test_a_creation_whose_answer_is_lost_is_still_known_to_be_ours(
        self, shaky_storage: Storage, fault_proxy: FaultProxy
    ) -> None:
        fault_proxy.lose_answer_next(1)
        assert shaky_storage.create_exclusive("claim", b"the same bytes")
        fault_proxy.lose_answer_next(1)
        assert not shaky_storage.create_exclusive("claim", b"the same bytes")

    def test_a_fault_that_stays_ends_after_the_attempts_with_the_url(
        self, shaky_storage: Storage, fault_proxy: FaultProxy
    ) -> None:
        fault_proxy.fail_next(1000)
        message = fails(lambda: shaky_storage.write_bytes("x", b""))
        assert shaky_storage.url("x") in message
        assert "tried 4 times" in message
        assert "SlowDown" in message
        assert len(fault_proxy.requests) == 4


class TestRetries:
    @pytest.mark.parametrize(
        ("status", "code", "words"),
        [
            (403, "AccessDenied", "permission denied"),
            (403, "InvalidAccessKeyId", "credentials are refused"),
            (400, "ExpiredToken", "have expired"),
            (404, "NoSuchBucket", "does not exist"),
            (501, "NotImplemented", "NotImplemented"),
        ],
    )
    @pytest.mark.integration
    def test_a_fault_that_cannot_pass_is_told_at_the_first_try(
        self,
        shaky_storage: Storage,
        fault_proxy: FaultProxy,
        tmp_path: Path,
        status: int,
        code: str,
        words: str,
    ) -> None:
        (tmp_path / "x").write_bytes(b"x")
        fault_proxy.fail_next(1000, status, error_code=code)
        for call in (
            lambda: shaky_storage.write_bytes("x", b""),
            lambda: shaky_storage.upload_file(tmp_path / "x", "x"),
        ):
            fault_proxy.requests.clear()
            message = fails(call)
            assert words in message
            assert shaky_storage.url("x") in message
            assert len(fault_proxy.requests) == 1

    def test_pauses_double_up_to_a_bound_and_differ(self) -> None:
        policy = RetryPolicy(first_delay_s=1.0, max_delay_s=6.0)
        for attempt, longest_s in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 6.0), (9, 6.0)):
            delays_s = {policy.delay_s(attempt) for _ in range(50)}
            assert len(delays_s) > 1
            assert all(longest_s / 2 <= delay_s <= longest_s for delay_s in delays_s)

    def test_a_network_file_system_that_comes_back_is_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "x").write_bytes(b"1")
        errors = [OSError(errno.ESTALE, "Stale file handle"), OSError(errno.ETIMEDOUT, "Timed out")]
        open_file = os.open

        def stale_at_first(path: Any, *arguments: Any, **options: Any) -> int:
            if errors and path == tmp_path / "x":
                raise errors.pop()
            return open_file(path, *arguments, **options)

        monkeypatch.setattr(os, "open", stale_at_first)
        assert open_storage(str(tmp_path), retry=FAST_RETRY).read_bytes("x") == b"1"
        assert errors == []

    def test_a_file_that_it_created_before_its_answer_was_lost_is_known_to_be_ours(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        errors = [OSError(errno.ETIMEDOUT, "Timed out")]
        link = os.link

        def lost_at_first(source: Path, target: Path) -> None:
            link(source, target)
            if errors:
                raise errors.pop()

        monkeypatch.setattr(os, "link", lost_at_first)
        storage = open_storage(str(tmp_path), retry=FAST_RETRY)
        assert storage.create_exclusive("x", b"1")
        assert errors == []
        assert not storage.create_exclusive("x", b"2")
        assert [path.name for path in tmp_path.iterdir()] == ["x"]


class TestCheckWritable:
    @pytest.mark.integration
    def test_a_good_place_passes_and_is_left_as_it_was(self, storage: Storage) -> None:
        storage.check_writable()
        assert storage.list_files() == []

    @of_every_bucket
    def test_a_bucket_that_does_not_exist_is_named(
        self, shaky_storage: Storage, fault_proxy: FaultProxy, bucket_kind: str
    ) -> None:
        options = options_of(bucket_kind, fault_proxy.url)
        storage = open_storage(f"{bucket_kind}://no-{uuid4().hex}/runs", options)
        message = fails(storage.check_writable)
        assert f"the bucket {storage.url().split('/')[2]!r} does not exist" in message
        assert storage.url() in message

    def test_missing_credentials_are_named(
        self, s3_bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        message = fails(open_storage(s3_bucket, StorageOptions(s3_endpoint)).check_writable)
        assert "no credentials" in message
        assert "AWS_ACCESS_KEY_ID" in message

    @pytest.mark.parametrize(
        ("bucket_kind", "method", "permission"),
        [
            *(
                ("s3", *each)
                for each in (("PUT", "s3:PutObject"), ("GET", "s3:GetObject"), ("DELETE", "s3:DeleteObject"))
            ),
            *(("gs", method, "roles/storage.objectUser") for method in ("PUT", "GET", "DELETE")),
            # It deletes by a batch of requests.
            *(("az", method, "Storage Blob Data Contributor") for method in ("PUT", "GET", "POST")),
        ],
    )
    def test_each_permission_that_is_missing_is_found(
        self, shaky_storage: Storage, fault_proxy: FaultProxy, method: str, permission: str
    ) -> None:
        fault_proxy.fail_next(1000, 403, method, error_code="AccessDenied")
        message = fails(shaky_storage.check_writable)
        assert "permission denied" in message
        assert permission in message

    def test_keys_that_are_wrong_are_told_of_where_something_is_looked_for(
        self, s3_bucket: str, fault_proxy: FaultProxy
    ) -> None:
        fault_proxy.fail_next(1000, 403, "HEAD")
        message = fails(lambda: open_storage(s3_bucket, StorageOptions(fault_proxy.url)).entry("train.csv"))
        assert "permission denied, or the credentials are wrong (403); check that they are those of" in message
        assert "s3:GetObject" in message and "PutObject" not in message

    @of_every_bucket
    @pytest.mark.integration
    def test_an_endpoint_where_nobody_answers_is_named(self, shaky_storage: Storage, bucket_kind: str) -> None:
        endpoint = "http://127.0.0.1:1"
        message = fails(open_storage(shaky_storage.url(), options_of(bucket_kind, endpoint)).check_writable)
        assert f"cannot connect to endpoint {endpoint}" in message

    def test_a_service_that_lets_two_create_the_same_file_is_refused(
        self, storage: Storage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def overwrite(self: Storage, key: str, data: bytes) -> bool:
            self.write_bytes(key, data)
            return True

        monkeypatch.setattr(type(storage), "create_exclusive", overwrite)
        assert "two writers could create the same file" in fails(storage.check_writable)
        assert storage.list_files() == []

    def test_a_file_in_the_way_of_a_folder_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        message = fails(open_storage(str(tmp_path / "file" / "runs")).check_writable)
        assert "there is a file where a folder is needed" in message
        assert str(tmp_path / "file") in message

    @pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
    def test_a_folder_without_permission_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "runs").mkdir(mode=0o500)
        message = fails(open_storage(str(tmp_path / "runs")).check_writable)
        assert "permission is denied" in message


class TestPyarrow:
    def test_ray_gets_a_path_and_a_filesystem_that_reads_and_writes(self, storage: Storage) -> None:
        path, filesystem = storage.for_pyarrow()
        if filesystem is None:
            assert path == storage.url()
            filesystem = fs.LocalFileSystem()
            filesystem.create_dir(path)
        else:
            assert path == storage.url().partition("://")[2]
            assert not any(secret in pickle.dumps(filesystem) for secret in (b"test-secret", KEY.encode()))
            filesystem = pickle.loads(pickle.dumps(filesystem))
        with filesystem.open_output_stream(f"{path}/from pyarrow") as stream:
            stream.write(b"content")
        assert storage.read_bytes("from pyarrow") == b"content"
        storage.write_bytes("to pyarrow", b"answer")
        with filesystem.open_input_stream(f"{path}/to pyarrow") as stream:
            assert stream.read() == b"answer"

    @of_every_bucket
    def test_ray_gets_a_filesystem_that_keeps_its_tries_in_other_processes(
        self, shaky_storage: Storage, fault_proxy: FaultProxy
    ) -> None:
        path, filesystem = shaky_storage.for_pyarrow()
        fault_proxy.fail_next(FAST_RETRY.attempts - 1, method="PUT")
        pickle.loads(pickle.dumps(filesystem)).open_output_stream(f"{path}/x").close()
        assert shaky_storage.read_bytes("x") == b""
