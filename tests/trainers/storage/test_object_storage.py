"""Buckets: how Google Cloud Storage and Azure are found, credentials, errors, names, processes."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.azurite import ACCOUNT, KEY
from tests.google_storage import GoogleStorageServer
from tests.object_stores import options_of
from tests.processes import wait_until_ended
from tests.s3 import FAST_RETRY, FaultProxy, fails, of_every_bucket
from trainers.config.storage_location import StorageOptions
from trainers.storage import Storage, open_storage
from trainers.storage.bucket import BucketStorage
from trainers.storage.object_client import Timeouts

NOBODY = "http://127.0.0.1:1"


def connection_string(**parts: str) -> str:
    return ";".join(f"{name}={value}" for name, value in parts.items())


class TestFinding:
    def test_a_google_server_comes_from_the_emulator_s_variable(
        self, gs_bucket: str, gs_endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for value in (gs_endpoint, gs_endpoint.removeprefix("http://"), f"{gs_endpoint}/"):
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", value)
            storage = open_storage(gs_bucket, retry=FAST_RETRY)
            monkeypatch.delenv("STORAGE_EMULATOR_HOST")
            storage.write_bytes("a", b"1")
            assert pickle.loads(pickle.dumps(storage)).read_bytes("a") == b"1"

    @pytest.mark.integration
    def test_an_account_with_its_server_and_key_comes_from_a_connection_string(
        self, az_bucket: str, az_endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
        text = connection_string(AccountName=ACCOUNT, AccountKey=KEY, BlobEndpoint=f"{az_endpoint}/{ACCOUNT}")
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
        storage = open_storage(az_bucket, retry=FAST_RETRY)
        storage.check_writable()
        # Of another account, neither its server nor its key is used; a proxy takes the place of a cloud's own address.
        monkeypatch.setenv("http_proxy", NOBODY)
        other = open_storage(az_bucket, StorageOptions(az_account="other"))
        assert az_endpoint not in repr(other)
        assert "no credentials" in fails(other.check_writable)

    @pytest.mark.parametrize(
        ("parts", "endpoint"),
        [
            ({"AccountName": "speech", "EndpointSuffix": "core.chinacloudapi.cn"}, "speech.blob.core.chinacloudapi.cn"),
            ({"UseDevelopmentStorage": "true"}, "http://127.0.0.1:10000/devstoreaccount1"),
            ({"AccountName": "speech"}, "Azure, account speech"),
        ],
    )
    def test_a_connection_string_says_which_azure(
        self, no_cloud: None, monkeypatch: pytest.MonkeyPatch, parts: dict[str, str], endpoint: str
    ) -> None:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(**parts))
        assert endpoint in repr(open_storage("az://c")) or "Azure" in endpoint
        monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
        assert "run.az_account" in fails(lambda: open_storage("az://c"))

    @pytest.mark.parametrize("endpoint", ["localhost:9000", "gs://x", "http://"])
    def test_a_server_that_is_no_url_is_refused(self, no_cloud: None, endpoint: str) -> None:
        options = StorageOptions(gs_endpoint_url=endpoint, az_account="a", az_endpoint_url=endpoint)
        if "://" in endpoint:
            assert endpoint in fails(lambda: open_storage("gs://b", options))
        assert endpoint in fails(lambda: open_storage("az://b", options))

    @pytest.mark.parametrize("endpoint", ["https://me:hush@host", "https://host/?sig=hush"])
    def test_credentials_in_the_url_of_a_server_are_refused_and_not_repeated(
        self, no_cloud: None, endpoint: str
    ) -> None:
        options = StorageOptions(gs_endpoint_url=endpoint, az_account="a", az_endpoint_url=endpoint)
        for root in ("gs://b", "az://b"):
            assert "hush" not in fails(lambda root=root: open_storage(root, options))  # type: ignore[misc]


class TestCredentials:
    def test_no_token_of_google_is_sent_to_another_server(
        self, gs_bucket: str, fault_proxy: FaultProxy, gs_endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fault_proxy.upstream = gs_endpoint
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file.json")
        open_storage(gs_bucket, options_of("gs", fault_proxy.url), retry=FAST_RETRY).write_bytes("a", b"")
        assert fault_proxy.signatures == ["Bearer none"]
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "of-the-server")
        open_storage(gs_bucket, options_of("gs", fault_proxy.url), retry=FAST_RETRY).write_bytes("a", b"")
        assert fault_proxy.signatures[1:] == ["Bearer of-the-server"]

    def test_a_file_of_credentials_that_is_not_there_is_named(
        self, no_cloud: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file.json")
        message = fails(open_storage("gs://b").check_writable)
        assert "no credentials" in message
        assert "/no/such/file.json" in message

    @pytest.mark.parametrize(
        ("root", "variable"),
        [("gs://b", "GOOGLE_APPLICATION_CREDENTIALS"), ("az://b", "AZURE_STORAGE_CONNECTION_STRING")],
    )
    @pytest.mark.integration
    def test_missing_credentials_are_named_where_no_cloud_gives_any(
        self, no_cloud: None, monkeypatch: pytest.MonkeyPatch, root: str, variable: str, tmp_path: os.PathLike[str]
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        # In place of the address that a cloud's machines ask.
        monkeypatch.setenv("http_proxy", NOBODY)
        message = fails(open_storage(root, StorageOptions(az_account="speech")).check_writable)
        assert "no credentials" in message
        assert variable in message

    def test_a_wrong_key_is_named_and_not_repeated(
        self, az_bucket: str, az_endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for key, words in (("AAAA", "credentials are refused"), ("not base64", "no credentials")):
            monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", key)
            message = fails(open_storage(az_bucket, options_of("az", az_endpoint)).check_writable)
            assert words in message
            assert key not in message


@of_every_bucket
class TestErrors:
    @pytest.mark.parametrize(
        ("status", "code", "words"),
        [
            (401, "AuthenticationRequired", "credentials are refused"),
            (403, "AuthenticationFailed", "credentials are refused"),
            (403, "AccessDenied", "permission denied"),
            (404, "NoSuchBucket", "does not exist"),
            (501, "NotImplemented", "NotImplemented"),
        ],
    )
    def test_a_fault_that_cannot_pass_is_told_at_the_first_try(
        self, shaky_storage: Storage, fault_proxy: FaultProxy, status: int, code: str, words: str
    ) -> None:
        fault_proxy.fail_next(1000, status, error_code=code)
        message = fails(lambda: shaky_storage.write_bytes("x", b""))
        assert words in message
        assert shaky_storage.url("x") in message
        assert len(fault_proxy.requests) == 1

    def test_a_part_of_an_object_is_never_taken_for_all_of_it(
        self, shaky_storage: Storage, fault_proxy: FaultProxy
    ) -> None:
        shaky_storage.write_bytes("x", os.urandom(100_000))
        fault_proxy.cut_next(1000, method="GET")
        message = fails(lambda: shaky_storage.read_bytes("x"))
        assert "broke" in message
        assert shaky_storage.url("x") in message

    @pytest.mark.integration
    def test_an_upload_may_take_longer_than_a_response_to_a_read(
        self, shaky_storage: Storage, fault_proxy: FaultProxy, tmp_path: Path
    ) -> None:
        assert isinstance(shaky_storage, BucketStorage)
        storage = replace(shaky_storage, timeouts=Timeouts(connect_s=10.0, read_s=0.5))
        (tmp_path / "x").write_bytes(b"content")
        fault_proxy.delay_put_s = 1.5
        storage.upload_file(tmp_path / "x", "x")
        assert "broke" in fails(lambda: storage.write_bytes("y", b""))
        assert sum(path.endswith("x") for _, path in fault_proxy.requests) == 1

    def test_where_listing_is_not_allowed_nothing_is_known(
        self, shaky_storage: Storage, fault_proxy: FaultProxy
    ) -> None:
        shaky_storage.write_bytes("a/x", b"")
        assert [*(shaky_storage.list_some({"a/x", "a/y"}) or {})] == ["a/x"]
        fault_proxy.fail_next(1000, 403, "GET", error_code="AccessDenied")
        assert shaky_storage.list_some({"a/x"}) is None

    def test_a_read_takes_one_request_whatever_the_size(self, shaky_storage: Storage, fault_proxy: FaultProxy) -> None:
        for size_bytes in (0, 10, 2_000_000):
            shaky_storage.write_bytes("x", bytes(size_bytes))
            fault_proxy.requests.clear()
            assert shaky_storage.read_bytes("x") == bytes(size_bytes)
            assert [method for method, _ in fault_proxy.requests] == ["GET"]


def test_the_mark_of_an_empty_folder_is_no_file(
    gs_bucket: str, gs_server: GoogleStorageServer, gs_endpoint: str
) -> None:
    storage = open_storage(f"{gs_bucket}/runs", options_of("gs", gs_endpoint), retry=FAST_RETRY)
    storage.write_bytes("a/file", b"")
    objects = gs_server.buckets[gs_bucket.removeprefix("gs://")]
    for name in ("runs/", "runs/a/"):
        objects[name] = objects["runs/a/file"]
    assert [entry.key for entry in storage.list_files()] == ["a/file"]
    assert [entry.key for entry in storage.list_files("a")] == ["a/file"]
    assert storage.list_folders() == ["a"]


def test_keys_are_found_in_a_listing_whatever_they_begin_with(
    gs_bucket: str, gs_server: GoogleStorageServer, gs_endpoint: str
) -> None:
    storage = open_storage(gs_bucket, options_of("gs", gs_endpoint), retry=FAST_RETRY)
    for key in ("-", ".b", "a/.b", "a/..b", "a/c", "b"):
        storage.write_bytes(key, b"1")
        assert [*(storage.list_some({key}) or {})] == [key]
    assert [*(storage.list_some({"a/.b", "a/c"}) or {})] == ["a/.b", "a/c"]
    # Of another tool.
    objects = gs_server.buckets[gs_bucket.removeprefix("gs://")]
    objects["a/../../b"] = objects["b"]
    assert storage.list_some({"a/.b", "a/c"}) is None, "nothing is known, which is no error"
    message = fails(storage.list_files)
    assert "a/../../b" in message
    assert "move it" in message


@of_every_bucket
class TestProcesses:
    def test_a_process_that_used_it_ends_by_itself_and_loads_boto3_for_s3_alone(
        self, shaky_storage: Storage, fault_proxy: FaultProxy, bucket_kind: str
    ) -> None:
        program = (
            "import sys, pickle; storage = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
            "path, files = storage.for_pyarrow()\n"
            "files.open_output_stream(path + '/x').close()\n"
            "assert storage.read_bytes('x') == b''\n"
            "assert {'boto3', 'torch'} & {*sys.modules} == ({'boto3'} if storage.url().startswith('s3:') else set())"
        )
        subprocess.run([sys.executable, "-c", program, pickle.dumps(shaky_storage).hex()], check=True, timeout=120)

    @pytest.mark.integration
    def test_errors_reach_a_forked_process_and_its_helper_ends_with_it(
        self, shaky_storage: Storage, fault_proxy: FaultProxy
    ) -> None:
        shaky_storage.write_bytes("a", b"1")
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            told = b"nothing"
            try:
                assert shaky_storage.create_exclusive("b", b"2")
                assert not shaky_storage.create_exclusive("b", b"3")
                assert "no such object" in fails(lambda: shaky_storage.read_bytes("none"))
                (helper,) = psutil.Process().children()
                told = str(helper.pid).encode()
            finally:
                os.write(writer, told)
                os._exit(0)
        os.close(writer)
        answer = os.read(reader, 100).decode()
        os.waitpid(child, 0)
        assert answer.isdigit(), answer
        wait_until_ended(int(answer))
        assert shaky_storage.read_bytes("b") == b"2"
