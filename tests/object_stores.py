"""A Google Cloud Storage and an Azure over HTTP for tests, and a bucket in each, as `s3` has it of S3."""

import os
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.azurite import ACCOUNT, KEY, azurite_service, create_container
from tests.google_storage import GoogleStorageServer, google_storage_service
from trainers.config.storage_location import StorageOptions

_PREFIXES = ("GOOGLE_", "AZURE_", "STORAGE_EMULATOR_HOST")


@pytest.fixture(scope="session")
def gs_server() -> GoogleStorageServer:
    return GoogleStorageServer()


@pytest.fixture(scope="session")
def gs_endpoint(gs_server: GoogleStorageServer) -> Iterator[str]:
    """The URL of a Google Cloud Storage that lives as long as the session."""
    with google_storage_service(gs_server) as url:
        yield url


@pytest.fixture(scope="session")
def az_endpoint() -> Iterator[str]:
    """The URL of an Azurite that lives as long as the session; that of its account is one level below."""
    with azurite_service() as url:
        yield url


@pytest.fixture
def no_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of Google's or Azure's is set."""
    for name in [name for name in os.environ if name.startswith(_PREFIXES)]:
        monkeypatch.delenv(name)


@pytest.fixture
def gs_bucket(no_cloud: None, gs_server: GoogleStorageServer) -> str:
    """A new, empty bucket as `gs://name`; a server that is not Google's needs no credentials."""
    name = f"test-{uuid4().hex}"
    gs_server.buckets[name] = {}
    return f"gs://{name}"


@pytest.fixture
def az_bucket(no_cloud: None, az_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new, empty container as `az://name`, with the account's key in the environment."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    name = f"test-{uuid4().hex}"
    create_container(az_endpoint, name)
    return f"az://{name}"


def options_of(kind: str, endpoint: str) -> StorageOptions:
    """How a bucket of a kind, "s3", "gs" or "az", is reached at the URL of a service, or of a proxy before it."""
    if kind == "s3":
        return StorageOptions(endpoint)
    if kind == "gs":
        return StorageOptions(gs_endpoint_url=endpoint)
    return StorageOptions(az_account=ACCOUNT, az_endpoint_url=f"{endpoint}/{ACCOUNT}")
