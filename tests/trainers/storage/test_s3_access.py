import os
import pickle
from collections.abc import Callable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from pathlib import Path

import boto3
import pytest
from botocore import UNSIGNED
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config
from urllib3 import HTTPResponse

from tests import web
from tests.s3 import FAST_RETRY, FaultProxy, fails, serving
from trainers.config.parts.run_part import RunPart
from trainers.config.storage_location import S3Access, StorageOptions
from trainers.storage import Storage, open_storage
from trainers.storage.s3_service import located

CREDENTIALS = "[default]\naws_access_key_id = own\naws_secret_access_key = x\n"
PARTNER = "[partner]\naws_access_key_id = partner-key\naws_secret_access_key = partner-secret\n"


def by_pyarrow(storage: Storage) -> bytes:
    path, filesystem = storage.for_pyarrow()
    pickled = pickle.dumps(filesystem)
    assert b"secret" not in pickled
    with pickle.loads(pickled).open_input_stream(f"{path}/x") as stream:
        return bytes(stream.read())


READERS: dict[str, Callable[[Storage], bytes]] = {
    "storage": lambda storage: storage.read_bytes("x"),
    "pyarrow": by_pyarrow,
}


@pytest.fixture(params=[*READERS.values()], ids=[*READERS])
def read(request: pytest.FixtureRequest) -> Callable[[Storage], bytes]:
    """Each way in which an object is read."""
    reader: Callable[[Storage], bytes] = request.param
    return reader


@pytest.fixture
def bucket(s3_bucket: str, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket with an object x in it; the credentials of the profile partner are in AWS's file."""
    open_storage(s3_bucket, StorageOptions(s3_endpoint)).write_bytes("x", b"content")
    (tmp_path / "credentials").write_text(CREDENTIALS + PARTNER)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return s3_bucket


def test_credentials_are_those_of_the_profile(
    bucket: str, fault_proxy: FaultProxy, read: Callable[[Storage], bytes]
) -> None:
    options = StorageOptions(fault_proxy.url, s3_profile="partner")
    assert read(open_storage(bucket, options, retry=FAST_RETRY)) == b"content"
    assert all("Credential=partner-key/" in signature for signature in fault_proxy.signatures)


def test_requests_are_signed_for_the_region(
    bucket: str, fault_proxy: FaultProxy, read: Callable[[Storage], bytes]
) -> None:
    options = StorageOptions(fault_proxy.url, s3_region="eu-central-7")
    assert read(open_storage(bucket, options, retry=FAST_RETRY)) == b"content"
    assert all("/eu-central-7/s3/" in signature for signature in fault_proxy.signatures)


def test_anonymous_requests_have_no_credentials_and_need_none(
    bucket: str, fault_proxy: FaultProxy, read: Callable[[Storage], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = boto3.session.Session().client("s3", endpoint_url=fault_proxy.upstream)
    client.put_object_acl(Bucket=bucket.removeprefix("s3://"), Key="x", ACL="public-read")
    options = StorageOptions(fault_proxy.url, s3_anonymous=True)
    assert read(open_storage(bucket, options, retry=FAST_RETRY)) == b"content"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name)
    assert read(open_storage(bucket, options, retry=FAST_RETRY)) == b"content"
    assert set(fault_proxy.signatures) == {""}


@pytest.mark.integration
def test_a_bucket_of_another_account_is_reached_by_its_own_settings_alone(
    bucket: str, s3_endpoint: str, fault_proxy: FaultProxy, read: Callable[[Storage], bytes]
) -> None:
    name = bucket.removeprefix("s3://")
    run = RunPart.model_validate(
        {
            "s3_endpoint_url": "http://127.0.0.1:1",
            "s3_region": "us-west-1",
            "s3_anonymous": True,
            "s3_buckets": {name: {"endpoint_url": fault_proxy.url, "profile": "partner"}, "other": {}},
        }
    )
    assert StorageOptions.of(run.model_dump(mode="json")) == run.storage_options
    assert pickle.loads(pickle.dumps(run.storage_options)) == run.storage_options
    assert read(open_storage(bucket, run.storage_options, retry=FAST_RETRY)) == b"content"
    assert all("Credential=partner-key/" in signature for signature in fault_proxy.signatures)
    assert not any("us-west-1" in signature for signature in fault_proxy.signatures)
    assert "127.0.0.1:1" in fails(open_storage("s3://third", run.storage_options, retry=FAST_RETRY).check_writable)


def test_a_profile_that_no_file_has_is_named_with_the_fix(bucket: str, s3_endpoint: str) -> None:
    storage = open_storage(bucket, StorageOptions(s3_endpoint, s3_profile="nobody"))
    for call in (lambda: storage.read_bytes("x"), storage.check_writable):
        message = fails(call)
        assert "nobody" in message
        assert "run.s3_profile" in message


def test_options_of_an_older_run_are_the_defaults() -> None:
    assert StorageOptions.of({"name": "sr", "s3_endpoint_url": None}) == StorageOptions()
    assert asdict(StorageOptions().s3_access("any")) == asdict(S3Access())


@pytest.mark.parametrize(
    "fields",
    [
        {"s3_profile": "a", "s3_anonymous": True},
        {"s3_buckets": {"b": {"profile": "a", "anonymous": True}}},
        {"s3_region": "eu-west-1.evil.example/"},
        {"s3_buckets": {"b": {"region": "x/y"}}},
        {"s3_buckets": {"s3://b": {}}},
        {"s3_buckets": {"b": {"access_key": "x"}}},
    ],
)
def test_what_contradicts_itself_or_names_no_bucket_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"anonymous|pattern|forbidden|not permitted"):
        RunPart.model_validate(fields)


def test_a_login_page_in_place_of_the_service_is_named(bucket: str) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Page)
    with serving(server):
        storage = open_storage(bucket, StorageOptions(f"http://127.0.0.1:{server.server_port}"))
        assert "the response is not of the S3 protocol" in fails(lambda: storage.exists("x"))


def test_the_endpoint_of_the_config_wins_over_variables(
    bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert open_storage(bucket, StorageOptions(s3_endpoint), retry=FAST_RETRY).read_bytes("x") == b"content"


@pytest.mark.integration
def test_the_endpoint_of_the_profile_is_used(
    bucket: str, fault_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(f"[default]\nendpoint_url = {fault_proxy.url}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert open_storage(bucket, retry=FAST_RETRY).read_bytes("x") == b"content"
    assert [method for method, _ in fault_proxy.requests] == ["HEAD", "GET"]


def test_the_url_of_a_bucket_of_aws_is_that_to_which_aws_redirects() -> None:
    responses = [(301, {"x-amz-bucket-region": "eu-west-3"}), (403, {"x-amz-bucket-region": "eu-west-3"})]

    def respond(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        status, headers = responses.pop(0)
        return AWSResponse(
            request.url, status, HTTPHeaders.from_dict(headers), HTTPResponse(BytesIO(), preload_content=False)
        )

    client = boto3.session.Session().client("s3", config=Config(signature_version=UNSIGNED), region_name="eu-west-1")
    client.meta.events.register("before-send.s3.HeadBucket", respond)
    assert located(client, "speech") == ("https://speech.s3.eu-west-3.amazonaws.com", "eu-west-3")


def test_only_the_certificates_in_the_user_s_bundle_are_trusted(
    certificate: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.environ.get("SSL_CERT_FILE")
    headers = {"Last-Modified": "Sat, 28 Nov 2026 10:00:00 GMT", "ETag": '"1"'}
    with web.serving(certificate) as server:
        server.publish("/speech/x", b"content", headers=headers)
        storage = open_storage("s3://speech", StorageOptions(server.url), retry=FAST_RETRY)
        assert "AWS_CA_BUNDLE" in fails(lambda: storage.read_bytes("x"))
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        assert storage.read_bytes("x") == b"content"
        assert os.environ.get("SSL_CERT_FILE") == before
